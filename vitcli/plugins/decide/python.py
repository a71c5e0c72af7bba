"""`vitcli.decide`, and verdicts on pairs that any program has trained, such as in a CSV file."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, MutableSequence, Sequence, ValuesView
from pathlib import Path
from typing import Any

from vitcli.core.metric import Metric
from vitcli.core.spec import Spec
from vitcli.plugins.decide import rule
from vitcli.plugins.table.results_file import Choices, checked, read_text
from vitcli.runner.errors import ConfigError
from vitcli.runner.files import commit, make_output_folder, read_hashed, to_hashed_json
from vitcli.runner.report.tables import csv_text
from vitcli.runner.study.from_python import FIELDS, plain, reporter
from vitcli.runner.study.result import VariantResult, sort_seeds
from vitcli.runner.study.statistics import scores
from vitcli.runner.text import Listener, printable, quantity

CALL = "vitcli.decide"
SMALL = 1e-6
"""The rule takes differences that vary by less than 1e-9 for equal ones."""
Train = Callable[[int], float]


class Limits(Spec):
    """The options of numbers and of own training functions."""

    max_seeds: rule.MaxSeeds = rule.MOST
    margin: rule.Margin | None = None
    higher_is_better: bool = True


class Numbers(Limits):
    differences: list[float]


class Score(Spec):
    score: float


def decide(
    change: Any, against: Any, on_message: Listener, *, folder: Any = None, **choices: Any
) -> rule.Answer:
    given = {name: plain(value, CALL) for name, value in choices.items() if value is not None}
    if isinstance(change, str | Path | Mapping):
        return of_experiments(change, against, on_message, folder, given)
    if callable(change):
        if not callable(against) or folder is None:
            raise ConfigError(f"{CALL}: an own training function needs another one and a folder")
        return of_functions(change, against, on_message, Path(folder), checked(Limits, given))
    if against is not None or folder is not None:
        raise ConfigError(
            f"{CALL}: numbers are differences, each the score of the change minus that of the"
            " best; leave out 'against' and 'folder'"
        )
    values = [*change] if isinstance(change, Iterator | MutableSequence | ValuesView) else change
    numbers = checked(Numbers, given | {"differences": plain(values, CALL)})
    if 0 < max(map(abs, numbers.differences), default=0) < SMALL:
        raise ConfigError(f"{CALL}: all differences are below {SMALL:g}; write a smaller unit")
    return rule.decide(**numbers.model_dump())


def of_experiments(
    change: Any, against: Any, on_message: Listener, folder: Any, given: dict[str, Any]
) -> rule.Answer:
    from vitcli.plugins.decide.comparison import Call, compare
    from vitcli.runner.study.plan import Options

    command = f"{CALL}({change!r}, {against!r})"
    experiment, fields = (None, plain(change)) if isinstance(change, Mapping) else (str(change), {})
    data_dir = Path(given.pop("data_dir")) if "data_dir" in given else None
    names = {field.name for field in dataclasses.fields(Options)} & given.keys()
    chosen = {name: given.pop(name) for name in names}
    given["typed"] = {field: given.pop(name, None) for name, field in FIELDS.items()}
    given |= {"against": str(against) if against else None, "command": command}
    given |= {"folder": Path(folder) if folder else None, "on_message": on_message}
    pairs = checked(Call, given).compare(experiment, fields)
    options = Options(**{**chosen, "data_dir": data_dir, "command": command})
    compare(pairs, options, reporter(on_message, pairs.row))
    for note in pairs.notes:
        on_message(f"note: {note}")
    return pairs.idea


def of_functions(
    change: Train, best: Train, on_message: Listener, folder: Path, chosen: Limits
) -> rule.Decision:
    """Train pair after pair, and keep the scores of each in a file of the folder."""
    make_output_folder(folder)
    path = folder / "scores.json"
    fixed = {"functions": [name_of(change), name_of(best)], **chosen.model_dump()}
    before = read_hashed(path) or {**fixed, "scores": []}
    pairs = before.pop("scores", None)
    if before != fixed:
        raise ConfigError(f"{path}: began with {before}; call again with these, or take a folder")
    if pairs:
        known = quantity(len(pairs), "pair")
        on_message(f"note: {known} from {path}; another change needs another folder")
    choices: dict[str, Any] = chosen.model_dump()
    while not (decision := rule.decide([a - b for a, b in pairs], **choices)).is_final:
        pairs.append([score_of(train, len(pairs)) for train in (change, best)])
        commit(path, to_hashed_json({**fixed, "scores": pairs}))
    return decision


def name_of(train: Train) -> str:
    """Return how a function is called, with what a ``partial`` of it passes."""
    if not isinstance(train, functools.partial):
        return getattr(train, "__qualname__", type(train).__name__)
    from vitcli.runner.train.contract import describe_value

    return f"{name_of(train.func)} {describe_value([train.args, train.keywords])}"


def score_of(train: Train, seed: int) -> float:
    place = f"{CALL}: {name_of(train)} with seed {seed}"
    return checked(Score, {"score": plain(train(seed), CALL)}, place).score


def judge(
    path: Path, change: str | None, most: int | None, choices: Choices, command: str, say: Listener
) -> tuple[Sequence[str], rule.Decision, Metric, list[str]]:
    """Return the names of change and best, the verdict, the score's metric, and notes."""
    text = csv_text(path)
    document, unused, written = read_text(text, str(path), choices, command, in_file_order=True)
    if unused:
        say(f"not used: {', '.join(unused)}")
    if document.origin:
        say(document.origin.reading)
    if document.folds:
        raise ConfigError("decide takes seeds, and this file pairs folds; take 'vitcli table'")
    metric = document.headline
    best, *others = document.rows
    rows = [row for row in others if change in (None, row.variant)]
    if len(rows) != 1:
        problem = "name the variant to judge" if change is None else f"no variant {change!r}"
        names = ", ".join(row.variant for row in others) or "no other"
        raise ConfigError(printable(f"{problem}; beside {best.variant}, the file has {names}"))
    row = rows[0]

    def outcomes(side: VariantResult) -> dict[int, rule.Outcome]:
        ended = [trial.seed for trial in side.trials if trial.state == "diverged"]
        return {**scores(side, metric), **{seed: f"seed {written[seed]}" for seed in ended}}

    ours, theirs = outcomes(row), outcomes(best)
    seeds = sort_seeds({trial.seed for trial in (*best.trials, *row.trials)}, document.plan)
    decision = rule.judge(
        [(ours.get(seed), theirs.get(seed)) for seed in seeds],
        lambda pairs: row.contrast,
        max_seeds=most or rule.MOST,
        margin=choices.margin,
        higher_is_better=metric.higher_is_better,
    )
    notes = [] if row.contrast else [rule.ABOUT_IMAGES]
    if not decision.is_final:
        missing = [f"seed {written[seed]}" for seed in seeds[decision.pairs :]]
        missing.append(f"a seed after {written[seeds[-1]]}")
        notes.append(f"one more pair is needed, in the order of the seeds: {missing[0]}")
    return (row.variant, best.variant), decision, metric, notes
