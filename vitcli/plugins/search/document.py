"""The document of a search: that of a study whose rows are trials, the best score first."""

import shlex
from collections import Counter
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from vitcli.core.spec import Spec
from vitcli.plugins.search.kind import PRUNED
from vitcli.runner.errors import ConfigError
from vitcli.runner.experiment import config
from vitcli.runner.experiment.yaml_text import dump, format_value
from vitcli.runner.files import commit
from vitcli.runner.report.tables import Table, make_table
from vitcli.runner.run.record import RunRecord
from vitcli.runner.study.collect import study_result
from vitcli.runner.study.notes import environment_note, training_note
from vitcli.runner.study.result import (
    EARLY_STOPPING,
    FigureRow,
    StudyResult,
    TrialEntry,
    VariantResult,
)
from vitcli.runner.study.table import caption_of, count_text, mflop_text
from vitcli.runner.text import portable, portable_fields, quantity, rough_duration

if TYPE_CHECKING:
    from vitcli.plugins.search.trials import Trials

PARETO = FigureRow(
    "Validation score and number of parameters of each trial. No smaller trial beats one of the"
    " front.",
    "vitcli.plugins.search.pareto:pareto",
)


def state_of(trial: RunRecord | TrialEntry) -> str:
    return PRUNED if trial.reason.startswith(PRUNED) else trial.state


def validation_score(row: VariantResult) -> float | None:
    """Return the last score of the one trial of a row; None if it is not finished."""
    trial = row.trials[0]
    return trial.curve[-1][1] if trial.state == "finished" and trial.curve else None


class Searched(Spec):
    """What a document of a search says of it; each row is a trial, the best score first."""

    sampler: str
    seed: int
    pruning: str
    num_trials: int
    space: dict[str, str]
    skipped: dict[str, int] = Field(default_factory=dict)
    """Rule -> number of points that broke it, so that they were not trained."""
    states: dict[str, int]
    """State -> number of trials; ``pruned`` is one of them."""


class SearchResult(StudyResult):
    compares: ClassVar[bool] = False
    baseline: ClassVar[str] = "default"
    changes: ClassVar[str] = "Fields that the search varies"
    figures: ClassVar[tuple[str, ...]] = ("pareto",)

    searched: Searched

    @model_serializer(mode="wrap")
    def _put_rows_last(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = dump(self)
        return fields | {"rows": fields.pop("rows")}

    @property
    def changed(self) -> dict[str, str]:
        return self.searched.space

    @property
    def front(self) -> list[VariantResult]:
        """Return the rows that no smaller model beats, the best score first."""
        front: list[VariantResult] = []
        for row in self.rows:
            is_smaller = not front or (row.parameters or 0) < (front[-1].parameters or 0)
            if validation_score(row) is not None and is_smaller:
                front.append(row)
        return front

    def own_table(self) -> Table:
        scale, digits = self.headline.scale, self.headline.digits
        fields, front = tuple(self.searched.space), {row.variant for row in self.front}
        ends = [field.rpartition(".")[2] for field in fields]
        names = [e if ends.count(e) == 1 else f for e, f in zip(ends, fields, strict=True)]
        has_states = {*self.searched.states} != {"finished"}
        rows = [
            (
                row.variant,
                "" if score is None else f"{scale * score:.{digits}f}",
                count_text(row.parameters),
                mflop_text(row),
                "*" if row.variant in front else "",
                *(_value(row.changes.get(field)) for field in fields),
                *(state_of(trial) for trial in row.trials if has_states),
                rough_duration(row.trials[0].train_seconds),
            )
            for row, score in zip(self.rows, map(validation_score, self.rows), strict=True)
        ]
        score = f"validation {self.headline.title}"
        header = ["trial", score, "parameters", "MFLOP", "front", *names]
        header += ["state"] * has_states + ["training time"]
        numeric, caption, notes = (1, 2, 3, len(header) - 1), caption_of(self), tuple(_notes(self))
        return make_table(header, rows, numeric, name=self.name, caption=caption, notes=notes)


def _value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else format_value(value)


def _notes(doc: SearchResult) -> list[str]:
    searched = doc.searched
    states = ", ".join(f"{count} {state}" for state, count in searched.states.items())
    total = sum(searched.states.values())
    when = "best" if doc.base_config.get(EARLY_STOPPING) else "last"
    skipped = "; ".join(f"{rule} ({count:,})" for rule, count in searched.skipped.items())
    every = [
        f"{quantity(total, 'trial')} of {searched.num_trials} ({states}); sampler"
        f" {searched.sampler}, seed {searched.seed}; pruning {searched.pruning}.",
        f"Score: {doc.headline.label} on the validation split after the {when} epoch, one training"
        " each. The search reads no test image.",
        "The best of many scores is too high: chance is part of why it was chosen.",
        "Front: * has the best score of all models that are not larger (Pareto front).",
        f"Points that were not trained, and do not count: {skipped}." if skipped else "",
        training_note(doc),
        environment_note(doc),
        f"Command: {doc.command}",
    ]
    return [note for note in every if note]


NUM_SEEDS = 6
"""Number of seeds of the study that confirms: two variants need six for a p-value."""


def make_document(trials: "Trials") -> SearchResult:
    """Return the document of a search as its folder has it now; the best trial is its first row."""
    from vitcli.plugins.search.trials import read_plan

    search, asked = trials.search, trials.asked()
    if not asked:
        reasons = "; ".join(f"{rule} ({count:,})" for rule, count in trials.skipped().items())
        where = search.places.where(("search", "space"))
        raise ConfigError(f"{where}: search.space: no trial was begun ({reasons})")
    records = {folder: trials.record(folder) for folder in asked}
    parameters = read_plan(trials.root)["parameters"]
    points = [trials.trial(dict(question.params)) for question in asked.values()]
    words = config.typed_command("search", config.typed_name(search.path))
    words = [str(portable(word)) for word in words] + config.typed_changes(search.typed)
    study = study_result(
        {point.variant: [records[point.folder]] for point in points},
        rows={
            point.variant: {
                "changes": portable_fields(point.setting),
                "parameters": parameters.get(point.variant),
            }
            for point in points
        },
        spec=search.base,
        where=trials.root,
        name=search.name,
        question=search.purpose.question,
        hypothesis=search.purpose.hypothesis,
        command=shlex.join(words),
        threads=search.threads,
        num_comparisons=len(points),
    )
    doc = SearchResult(
        **dict(study),
        searched=Searched(
            sampler=search.fields.sampler,
            seed=search.fields.seed,
            pruning=search.fields.pruning,
            num_trials=search.num_trials,
            space={field: values.text for field, values in search.fields.space.items()},
            skipped=trials.skipped(),
            states=dict(sorted(Counter(map(state_of, records.values())).items())),
        ),
    )
    sign = -1 if doc.headline.higher_is_better else 1

    def rank(row: VariantResult) -> tuple[bool, float, int]:
        score = validation_score(row)
        return score is None, sign * (score or 0.0), row.parameters or 0

    return doc.replace(rows=tuple(sorted(doc.rows, key=rank)))  # of equals, the smaller model first


def write_confirmation(trials: "Trials", doc: SearchResult) -> str:
    """Write the study of the best trial against the default; return the command that trains it.

    Both are trained on the training and validation images, with seeds that the search has not used.
    The command is empty if no trial is better than the default.
    """
    search, options = trials.search, trials.options
    point = {field: doc.rows[0].changes[field] for field in search.fields.space}
    if validation_score(doc.rows[0]) is None or search.spec(point) == search.base:
        return ""
    fields = config.override(search.raw, {"data.val_split": 0})
    try:
        config.parse_experiment(fields, search.places)
    except ConfigError:  # such as early stopping, which needs validation images
        fields = dict(search.raw)
    study = {
        "question": f"is the best of the search {search.name} better than its default?",
        **{name: value for name, value in fields.items() if name != "seed"},
        "seeds": [seed for seed in range(10, 17) if seed != search.base.seed][:NUM_SEEDS],
        "threads": search.threads,
        "variants": {"default": {}, "best": point},
    }
    path = trials.root / f"{search.name}-confirm.yaml"
    commit(path, dump(study).encode())
    words = config.typed_command("ablate", str(path))
    words += ["--data-dir", str(options.data_dir)] if options.data_dir else []
    words += ["--device", options.device] if options.device != "auto" else []
    return shlex.join(words)
