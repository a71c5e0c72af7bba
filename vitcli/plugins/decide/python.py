"""`vitcli.decide`: the verdict on numbers, on own training functions, or on experiments."""

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Set
from pathlib import Path
from typing import Any

from vitcli.core.spec import Spec
from vitcli.plugins.decide import rule
from vitcli.plugins.table.results_file import checked
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.files import commit, make_output_folder, read_hashed, to_hashed_json
from vitcli.runner.run.folder import RUNS
from vitcli.runner.study.from_python import FIELDS, plain, reporter
from vitcli.runner.text import Listener, quantity

CALL = "vitcli.decide"
SCORES = "scores.json"
SMALL = 1e-6
"""If all of a list are smaller, their unit is too large: the rule takes differences that vary by
less than 1e-9 for equal ones."""
Train = Callable[[int], float]


class Choices(Spec):
    """The options of numbers and of own training functions."""

    max_seeds: int = rule.MOST
    margin: float | None = None
    higher_is_better: bool = True

    def decide(self, differences: Iterable[float]) -> rule.Decision:
        sign = 1 if self.higher_is_better else -1
        values = [sign * difference for difference in differences]
        return rule.decide(values, most=self.max_seeds, margin=self.margin)


def decide(
    change: Any,
    against: Any,
    on_message: Listener,
    *,
    folder: str | Path | None = None,
    **choices: Any,
) -> rule.Decision:
    if isinstance(change, str | Path | Mapping):
        return of_experiments(change, against, on_message, folder, **choices)
    given = {name: value for name, value in choices.items() if value is not None}
    chosen = checked(Choices, plain(given, CALL))
    if callable(change):
        if not callable(against) or folder is None:
            raise ConfigError(f"{CALL}: an own training function needs another one and a folder")
        return of_functions(change, against, on_message, Path(folder), chosen)
    if against is not None or folder is not None:
        raise ConfigError(
            f"{CALL}: numbers are differences, each the score of the change minus that of the"
            " best; leave out 'against' and 'folder'"
        )
    return chosen.decide(differences_of(change))


def differences_of(change: Any) -> list[float]:
    try:
        if isinstance(change, bytes | Set):
            raise TypeError
        values = [plain(value, CALL) for value in change]
        differences = [math.nan if value is None else float(value) for value in values]
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{CALL}: {type(change).__name__}: must be a list of differences, one number a pair, or"
            " a function, fields or an experiment"
        ) from error
    if any(differences) and all(abs(difference) < SMALL for difference in differences):
        raise ConfigError(f"{CALL}: all differences are below {SMALL:g}; write a smaller unit")
    return differences


def of_experiments(
    change: str | Path | Mapping[str, Any],
    against: Any,
    on_message: Listener,
    folder: str | Path | None,
    *,
    max_seeds: int | None = None,
    margin: float | None = None,
    campaign: str | None = None,
    data_dir: str | Path | None = None,
    **options: Any,
) -> rule.Decision:
    from vitcli.plugins.decide.ideas import Call
    from vitcli.plugins.decide.pairs import compare
    from vitcli.runner.study.plan import Options

    typed = {field: options.pop(name, None) for name, field in FIELDS.items()}
    known = {field.name for field in dataclasses.fields(Options)} - {"command"}
    if unknown := options.keys() - known:
        raise ConfigError(f"{CALL}: {min(unknown)}: no option of experiments")
    call = Call(
        folder=Path(folder) if folder else RUNS / campaign if campaign else None,
        is_campaign=campaign is not None,
        against=str(against) if against else None,
        typed=typed,
        max_seeds=max_seeds,
        margin=margin,
        command=f"{CALL}({change!r}, {against!r})",
        on_message=on_message,
    )
    is_fields = isinstance(change, Mapping)
    pairs = call.compare(None if is_fields else str(change), plain(change) if is_fields else {})
    if not pairs.idea.is_final:
        place = Path(data_dir) if data_dir else None
        chosen = Options(**options, data_dir=place, command=call.command)
        compare(pairs, chosen, reporter(on_message, pairs.row))
    for note in pairs.notes:
        on_message(f"note: {note}")
    return pairs.idea.decision(pairs.campaign.max_seeds)


def of_functions(
    change: Train, best: Train, on_message: Listener, folder: Path, chosen: Choices
) -> rule.Decision:
    """Train pair after pair, and keep the scores of each in a file of the folder."""
    make_output_folder(folder)
    path = folder / SCORES
    fixed = {"functions": [name_of(change), name_of(best)], **chosen.model_dump()}
    before = read_hashed(path) or {**fixed, "scores": []}
    scores = before.pop("scores", None)
    if before != fixed:
        raise ConfigError(f"{path}: began with {before}; call again with these, or take a folder")
    if scores:
        known = quantity(len(scores), "pair")
        on_message(f"note: {known} from {path}; another change needs another folder")
    while not (decision := chosen.decide(ours - theirs for ours, theirs in scores)).is_final:
        scores.append([score_of(train, len(scores)) for train in (change, best)])
        commit(path, to_hashed_json({**fixed, "scores": scores}))
    return decision


def name_of(train: Train) -> str:
    """Return how a function is called, with what a ``partial`` of it passes."""
    if not isinstance(train, functools.partial):
        return getattr(train, "__qualname__", type(train).__name__)
    from vitcli.runner.train.contract import describe_value

    passed = re.sub(r" at 0x\w+", "", f"{train.args} {train.keywords}")  # each process has others
    return f"{name_of(train.func)} {passed} ({describe_value([train.args, train.keywords])})"


def score_of(train: Train, seed: int) -> float:
    value = train(seed)
    try:
        score = float(value)
    except (TypeError, ValueError, RuntimeError):
        score = math.nan
    if not math.isfinite(score):
        raise InputError(
            f"{CALL}: {name_of(train)} returned {value!r} with seed {seed}, not a finite number;"
            " earlier pairs are kept"
        )
    return score
