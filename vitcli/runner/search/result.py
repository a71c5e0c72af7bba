"""The document of a search: its trials, the best of them, importances and noise."""

import shlex
import statistics
import warnings
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from vitcli.core.spec import Spec
from vitcli.core.spec.base import AcceptsList
from vitcli.core.spec.metrics import Metric
from vitcli.core.spec.task import TASKS
from vitcli.runner.experiment import own_code
from vitcli.runner.experiment.config import flatten, typed_changes, typed_name
from vitcli.runner.experiment.diff import changed_fields
from vitcli.runner.search.space import as_label
from vitcli.runner.search.trial import RULE, SearchTrial
from vitcli.runner.tables import Table, make_table
from vitcli.runner.text import portable, portable_fields, quantity

if TYPE_CHECKING:
    from vitcli.runner.search.objective import Objective

RESULTS = "results.json"
NUM_BEST = 10
"""Number of trials in the table of the best."""
MIN_IMPORTANCE = 10
"""Number of finished trials below which no importances are computed."""
EVALUATOR = "PED-ANOVA"
"""The evaluator of importances, which is Optuna's default since 2026."""


class SearchResult(Spec):
    """The document of a search. ``trials`` are in the order in which they were asked for."""

    name: str
    question: str = ""
    hypothesis: str = ""
    command: str
    task: str
    data: str
    epochs: int
    seed: int
    """Random seed of the sampler."""
    sampler: str
    pruning: str
    cost: str | None = None
    """The second objective; None for a search with one."""
    num_trials: int
    """Number of configurations that the search asks for, at most."""
    space: dict[str, str]
    """Dotted field -> its values, as text."""
    short_names: dict[str, str]
    base: dict[str, Any]
    """The base's values of the fields of the space."""
    base_config: dict[str, Any]
    """Fields of the base that differ from vitcli's defaults, dotted."""
    skipped: dict[str, int] = Field(default_factory=dict)
    """Rule -> number of points that broke it, so that they were not trained."""
    trials: Annotated[tuple[SearchTrial, ...], AcceptsList]
    repeats: Annotated[tuple[SearchTrial, ...], AcceptsList] = ()
    """Trainings of some configurations with further seeds."""
    importance_evaluator: str
    importances: dict[str, float]
    """Dotted field -> how much it decides a place among the best tenth; sums to 1."""

    @property
    def headline(self) -> Metric:
        return TASKS[self.task].headline

    @property
    def ranked(self) -> list[SearchTrial]:
        """Return the finished trials, the best first; of equal scores, the smaller model first."""
        done = [trial for trial in self.trials if trial.state == "finished"]
        sign = -1 if self.headline.higher_is_better else 1
        return sorted(done, key=lambda each: (sign * (each.score or 0.0), each.parameters))

    @property
    def winner(self) -> SearchTrial | None:
        """Return the trial with the best score; None without a finished trial."""
        return next(iter(self.ranked), None)

    @property
    def front(self) -> list[SearchTrial]:
        """Return the trials that no other trial beats in both score and cost, the cheapest first.

        A search with one objective has a front, too: its score against the parameters.
        """
        best: list[SearchTrial] = []
        for trial in sorted(self.ranked, key=lambda each: cost_of(each, self.cost_name)):
            if not best or self.headline.is_better(trial.score or 0.0, best[-1].score or 0.0):
                best.append(trial)
        return best

    @property
    def costs_differ(self) -> bool:
        return len({cost_of(trial, self.cost_name) for trial in self.ranked}) > 1

    @property
    def cost_name(self) -> str:
        return self.cost or "parameters"

    def noise(self) -> tuple[float, int] | None:
        """Return the standard deviation over seeds, pooled over the repeated configurations.

        The second number counts the degrees of freedom. None without repeats.
        """
        groups = self.scores_by_configuration()
        freedom = sum(len(scores) - 1 for scores in groups)
        if not freedom:
            return None
        total = sum(statistics.variance(scores) * (len(scores) - 1) for scores in groups)
        return (total / freedom) ** 0.5, freedom

    def scores_by_configuration(self) -> list[list[float]]:
        """Return the scores of each repeated configuration, over all of its seeds."""
        found: dict[str, list[float]] = {}
        repeated_hashes = {each.config_hash for each in self.repeats}
        for each in (*self.trials, *self.repeats):
            if each.config_hash in repeated_hashes and each.state == "finished":
                found.setdefault(each.config_hash, []).append(each.score or 0.0)
        return [scores for scores in found.values() if len(scores) > 1]


def cost_of(trial: SearchTrial, name: str) -> float:
    return float(getattr(trial, name) or 0)


def make_result(objective: "Objective") -> SearchResult:
    """Return the document of a search as its storage knows it now."""
    search = objective.search
    rules = Counter(
        trial.user_attrs[RULE]
        for trial in objective.study.get_trials(deepcopy=False)
        if RULE in trial.user_attrs
    )
    own = flatten(search.base.model_dump(mode="json"))
    repeats = [
        objective.repeats[folder]
        for folder in objective.wanted_repeats()
        if folder in objective.repeats
    ]
    return SearchResult(
        name=search.name,
        question=search.question,
        hypothesis=search.hypothesis,
        command=shlex.join(
            [
                *("vitcli", "search", typed_name(search.path)),
                *(str(portable(word)) for word in own_code.options()),
                *typed_changes(search.typed),
            ]
        ),
        task=search.base.task.name,
        data=search.base.data.name,
        epochs=search.base.train.epochs,
        seed=search.fields.seed,
        sampler=search.fields.sampler,
        pruning=search.fields.pruning,
        cost=search.fields.cost,
        num_trials=search.num_trials,
        space={field: each.text for field, each in search.space.parameters.items()},
        short_names=search.space.short_names(),
        base={field: own.get(field, own.get(f"{field}.run")) for field in search.space.parameters},
        base_config=portable_fields(changed_fields(search.base)),
        skipped=dict(sorted(rules.items())),
        trials=[*objective.read(objective.study).values()],  # type: ignore[arg-type]
        repeats=repeats,  # type: ignore[arg-type]
        importance_evaluator=EVALUATOR,
        importances=importances(objective),
    )


def importances(objective: "Objective") -> dict[str, float]:
    """Return field -> importance for the score (PED-ANOVA); sums to 1, or empty for few trials."""
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    study, search = objective.study, objective.search
    if sum(trial.state.name == "COMPLETE" for trial in study.trials) < MIN_IMPORTANCE:
        return {}
    sign = -1.0 if search.headline.higher_is_better else 1.0
    target = (lambda trial: sign * trial.values[0]) if search.is_pareto else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a target must be small where it is good
        evaluator = PedAnovaImportanceEvaluator()
        return dict(get_param_importances(study, evaluator=evaluator, target=target))


def best_table(doc: SearchResult, count: int = NUM_BEST) -> Table:
    """Return the table of the best trials, with the notes on the search.

    A star marks the trials of the Pareto front, if the trials differ in cost.
    """
    front = {trial.config_hash for trial in doc.front if doc.costs_differ}
    names = [doc.short_names[field] for field in doc.space]
    header = ["trial", f"validation {doc.headline.title}", "parameters", "MFLOP", *names]
    rows = [
        [
            f"{trial.config_hash[:12]}{' *' if trial.config_hash in front else ''}",
            score_text(doc, trial),
            f"{trial.parameters:,}",
            f"{trial.forward_flops / 1e6:.1f}",
            *(as_label(trial.point[field]) for field in doc.space),
        ]
        for trial in doc.ranked[:count]
    ]
    return replace(make_table(header, rows, range(1, 4)), notes=tuple(notes(doc)))


def score_text(doc: SearchResult, trial: SearchTrial) -> str:
    """Return a score as displayed in a column, without its unit."""
    scale, digits = doc.headline.scale, doc.headline.digits
    return "" if trial.score is None else f"{scale * trial.score:.{digits}f}"


def notes(doc: SearchResult) -> list[str]:
    """Return what a reader of the table must know, in sentences."""
    states = Counter(trial.state for trial in doc.trials)
    counted = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    found = [
        f"{quantity(len(doc.trials), 'trial')} of {doc.num_trials} ({counted or 'none'});"
        f" sampler {doc.sampler}, seed {doc.seed}.",
        f"Score: {doc.headline.label} on the validation split after the last epoch, one training"
        " each. The search reads no test image.",
        "The best of many scores is too high: chance is part of why it was chosen.",
    ]
    if doc.costs_differ:
        cost = cost_label(doc.cost_name)
        found.append(f"* Pareto front: every trial with a better score has more {cost}.")
    if doc.skipped:
        rules = "; ".join(f"{rule} ({count:,})" for rule, count in doc.skipped.items())
        found.append(f"Points that were not trained, and do not count: {rules}.")
    if doc.importances:
        shares = ", ".join(
            f"{doc.short_names[field]} {share:.2f}" for field, share in doc.importances.items()
        )
        rough = "; rough, because 50 trials or more are needed" if len(doc.ranked) < 50 else ""
        found.append(
            f"Importance of each field for a place among the best tenth of the"
            f" {quantity(states['finished'], 'finished trial')}"
            f" ({doc.importance_evaluator}{rough}): {shares}."
        )
        if states["pruned"]:
            found.append(
                f"{quantity(states['pruned'], 'pruned trial')} took no part in the importances, so"
                " a field whose values were mostly pruned can look unimportant."
            )
    if noise := doc.noise():
        size = doc.headline.scale * noise[0]
        count = len(doc.scores_by_configuration())
        found.append(
            f"Seeds: standard deviation {size:.{doc.headline.digits}f}"
            f" {doc.headline.difference_unit}"
            f" ({quantity(count, 'configuration')}, {noise[1]} degrees of freedom)."
        )
    return found


def cost_label(name: str) -> str:
    return name.replace("_flops", " FLOPs")
