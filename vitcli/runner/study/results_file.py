"""Results of any program: a CSV file with one trial a row becomes the document of a study.

The file has the columns variant, seed and score. Two more are used if they are there: state, and
predictions, which names a file with what the trial says of each test image. Exports of W&B and
MLflow have the same columns with prefixes. No torch.
"""

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal, InvalidOperation
from numbers import Real
from pathlib import Path
from typing import NamedTuple, cast, get_args

from vitcli.core.spec.metrics import Metric, metric_of
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.files import read_bounded, sha256
from vitcli.runner.run.folder import RESULT_STATES
from vitcli.runner.run.predictions import PerImage
from vitcli.runner.run.record import TrialState, assign_fields
from vitcli.runner.study.definition import Study
from vitcli.runner.study.image_file import read_images
from vitcli.runner.study.images import with_scores
from vitcli.runner.study.result import (
    Margin,
    Origin,
    State,
    StudyResult,
    TrialResult,
    VariantResult,
)
from vitcli.runner.tables import to_csv
from vitcli.runner.text import closest, did_you_mean

SHOWN = {"percent": "in percent", "fraction": "as a fraction of 1", "none": "as it stands"}
"""How scores can be written, in words."""
LARGEST = {"percent": 100, "fraction": 1}
MAX_FILE = 1 << 28
"""Largest size of a file in bytes."""
NAMES = {
    "variant": ("variant", "group"),
    "seed": ("seed",),
    "state": ("state", "status"),
    "predictions": ("predictions",),
    "score": ("score",),
}
"""Use -> what its column may be called, behind one of ``PREFIXES`` and in any case."""
PREFIXES = re.compile(r"^(params|metrics|config|summary)\.")
STATES = {"crashed": "failed", "killed": "interrupted", "scheduled": "missing"}
"""States of W&B and MLflow that have another name here."""
MAX_DIGITS = 4
SMALLEST = 0.001
"""Scores below it would have too few digits in tables and files."""


@dataclass(frozen=True, kw_only=True)
class Choices:
    """How to read a file, where it leaves a choice. None takes the default."""

    score: str | None = None
    """Column of the score. By default ``score``, or the only column without another use."""
    variant: str | None = None
    """Column of the variant."""
    seed: str | None = None
    """Column of what pairs the trials."""
    baseline: str | None = None
    """Variant that the others are compared with. By default the first one."""
    unit: str | None = None
    """How scores are written. By default known metrics are shares: in percent if one is above 1."""
    lower_is_better: bool | None = None
    """By default as the metric's; False for other names."""
    margin: float | None = None
    """Margin of equivalence, in the unit of the table."""

    def typed(self, use: str, value: object) -> str:
        """Return a choice as the user types it."""
        return f"--{'pairs' if use == 'seed' else use} {value}"


@dataclass(frozen=True, kw_only=True)
class Arguments(Choices):
    """Choices of a call in Python.

    Raises:
        ConfigError: A choice is of another type.
    """

    def __post_init__(self) -> None:
        kinds: dict[str, tuple[type, str]] = {
            "lower_is_better": (bool, "True or False"),
            "margin": (Real, "a number"),
        }
        for name, value in vars(self).items():
            kind, text = kinds.get(name, (str, "a text"))
            if not (value is None or isinstance(value, kind)):
                raise ConfigError(f"{self.typed(name, value)}: must be {text}")

    def typed(self, use: str, value: object) -> str:
        return f"{use}={value!r}"


class Line(NamedTuple):
    """A trial of the file; only a finished one has a score."""

    place: str
    """File and number of the line."""
    variant: str
    seed: str
    state: State
    score: Decimal | None
    images: PerImage | None


def read_results_file(path: Path, choices: Choices, command: str) -> tuple[StudyResult, list[str]]:
    """Return the document of a CSV file; see ``read_text``."""
    try:
        text = read_bounded(path, MAX_FILE).decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"{path}: not a CSV file in UTF-8") from error
    return read_text(text, str(path), choices, command)


def read_text(
    text: str, name: str, choices: Choices, command: str
) -> tuple[StudyResult, list[str]]:
    """Return the document of the text of a CSV file, and the columns that were not used.

    Args:
        text: A header, and a row for each trial.
        name: The path of the file, or a name for the text.
        choices: How to read it.
        command: The command that prints the table.

    Raises:
        InputError: The text is damaged, or contradicts itself.
        ConfigError: A choice does not fit the text.
    """
    rows = list(_rows(text, name))
    if len(rows) < 2:
        raise InputError(f"{name}: it needs a header and a row for each trial")
    (_, header), *body = rows
    columns = _columns(header, name, choices)
    lines: dict[tuple[str, str], Line] = {}
    for place, row in body:
        line = _line(place, {use: row[header.index(each)] for use, each in columns.items()})
        other = lines.setdefault((line.variant, line.seed), line)
        if other is not line:
            raise InputError(
                f"{other.place} and line {place.rpartition(':')[2]} are both {line.variant} with"
                f" seed {line.seed}; keep one of them"
            )
    unused = [each for each in header if each not in columns.values()]
    doc = _document(list(lines.values()), columns["score"], choices, text, name)
    return doc.replace(command=command), unused


def _rows(text: str, name: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the place and the cells of each row that is not empty."""
    first = text.partition("\n")[0]
    reader = csv.reader(io.StringIO(text), delimiter=max(",;\t", key=first.count), strict=True)
    width = 0
    try:
        for row in reader:
            place, width = f"{name}:{reader.line_num}", width or len(row)
            if row and len(row) != width:
                raise InputError(f"{place}: {len(row)} cells, but the header has {width}")
            if any(row):
                yield place, [cell.strip() for cell in row]
    except csv.Error as error:
        raise InputError(f"{name}:{reader.line_num}: not a row of a CSV file: {error}") from error


def _columns(header: Sequence[str], name: str, choices: Choices) -> dict[str, str]:
    """Return use -> column: variant, seed, score, and the optional ones that the file has."""
    plain = {PREFIXES.sub("", each): each for each in reversed(header)}
    folded = {each.casefold(): column for each, column in plain.items()}
    plain |= {each: each for each in header}
    found: dict[str, str] = {}
    for use, names in NAMES.items():
        chosen = getattr(choices, use, None)
        if chosen is not None and chosen not in plain:
            hint = did_you_mean(chosen, header) or f"; columns: {', '.join(header)}"
            raise ConfigError(f"{choices.typed(use, chosen)}: {name} has no such column{hint}")
        column = plain[chosen] if chosen else next(filter(None, map(folded.get, names)), None)
        rest = [each for each in header if each not in found.values()]
        if column is None and use == "score" and len(rest) == 1:
            column = rest[0]
        if column is not None:
            found[use] = column
        elif use in ("variant", "seed", "score"):
            option = choices.typed(use, closest(use, rest) or "COLUMN")
            raise InputError(
                f"{name}: no column {use!r}; type {option}; columns: {', '.join(header)}"
            )
    for column in found.values():
        if header.count(column) > 1:
            raise InputError(f"{name}: {header.count(column)} columns are called {column!r}")
    return found


def _line(place: str, cells: Mapping[str, str]) -> Line:
    """Return the trial of a row: use -> cell."""
    for use in ("variant", "seed"):
        if not cells[use]:
            raise InputError(f"{place}: the {use} is empty")
    given = cells.get("state", "").casefold() or "finished"
    state = STATES.get(given, given)
    if state not in get_args(State):
        hint = did_you_mean(state, get_args(State))
        raise InputError(f"{place}: state {given!r} is not known{hint}")
    is_finished, file = state == "finished", cells.get("predictions")
    return Line(
        place=place,
        variant=cells["variant"],
        seed=cells["seed"].removesuffix(".0"),  # pandas, if another row has no seed
        state=cast(State, state),
        score=_number(cells["score"], place) if is_finished else None,
        images=read_images(Path(place).parent, file, place) if is_finished and file else None,
    )


def _number(text: str, place: str) -> Decimal:
    try:
        value = Decimal(text)
    except InvalidOperation:
        value = Decimal("nan")
    if not value.is_finite() or abs(value) > 1e39:
        raise InputError(
            f"{place}: the score is {text or 'empty'}, which is no number; if the trial diverged"
            " or failed, say so in a column 'state'"
        )
    return value


def _document(
    lines: Sequence[Line], column: str, choices: Choices, text: str, name: str
) -> StudyResult:
    texts = list(dict.fromkeys(line.seed for line in lines))
    seeds = {each: int(each) for each in texts if each.isascii() and each.isdigit()}
    counted = ""
    if len(set(seeds.values())) < len(texts):
        seeds = {each: i for i, each in enumerate(texts)}
        counted = " The seeds are no whole numbers, so they are counted from 0."
    origin, unit = _origin(lines, column, choices, counted)
    names = list(dict.fromkeys(line.variant for line in lines))
    first = choices.baseline or names[0]
    if first not in names:
        hint = did_you_mean(first, names) or f"; choose one of {', '.join(names)}"
        raise ConfigError(f"{choices.typed('baseline', first)}: {name} has no such variant{hint}")
    rows, images = [], []
    for variant in sorted(names, key=lambda each: each != first):
        own = {seeds[line.seed]: line for line in lines if line.variant == variant}
        trials = [_trial(own.get(seed), seed, unit, origin) for seed in sorted(seeds.values())]
        rows.append(VariantResult(variant=variant, trials=tuple(trials)))
        images.append({s: line.images for s, line in own.items() if line.state == "finished"})
    margin = choices.margin
    margins: tuple[Margin, ...] = ()
    if margin is not None:
        if not 0 < margin < 1e39:
            raise ConfigError(f"{choices.typed('margin', margin)}: a margin is a number above 0")
        done = sum(line.state in RESULT_STATES for line in lines)
        today = date.today().isoformat()
        margins = (Margin(points=margin, date=today, num_finished=done),)
    return StudyResult(
        name=Path(name).stem,
        command="",
        data="",
        epochs=0,
        num_test=next((len(line.images.scores) for line in lines if line.images), None),
        num_comparisons=len(rows) - 1,
        base_config={},
        margins=margins,
        origin=origin.replace(file=Path(name).name, sha256=sha256(text.encode())),
        rows=with_scores(rows, images, origin.metric),
    )


def _origin(
    lines: Sequence[Line], column: str, choices: Choices, counted: str
) -> tuple[Origin, str]:
    """Return the source of the scores, and how all of them are written."""
    name = PREFIXES.sub("", column)
    named = metric_of(name) or metric_of(re.sub("(acc|acc1|top1)$", "accuracy", name))
    metric = named or Metric(name=name, label=name)
    scores = {line.place: line.score for line in lines if line.score is not None}
    is_share = metric.unit == "%" or any(line.images for line in lines)
    above = any(score > 1 for score in scores.values())
    unit = choices.unit or ("none" if not is_share else "percent" if above else "fraction")
    if unit not in SHOWN:
        raise ConfigError(f"{choices.typed('unit', unit)}: choose one of {', '.join(SHOWN)}")
    for place, score in scores.items():
        if unit in LARGEST and not 0 <= score <= LARGEST[unit]:
            raise InputError(
                f"{place}: the score is {score}, but {unit} lies between 0 and {LARGEST[unit]};"
                f" {choices.typed('unit', 'none')} takes the scores as they are"
            )
    largest = max(map(abs, scores.values()), default=Decimal(0))
    if 0 < largest < SMALLEST:
        raise InputError(
            f"the largest score of {column} is {largest}, which the table would round away; write"
            " all scores in a smaller unit, such as 1000 times as large"
        )
    lower = choices.lower_is_better
    lower = not metric.higher_is_better if lower is None else lower
    places = max([1, *(-int(score.as_tuple().exponent) for score in scores.values())])
    digits = metric.digits if named and not named.unit else min(MAX_DIGITS, places + 1)
    better = "lower" if lower else "higher"
    origin = Origin(
        file="",
        sha256="",
        score=metric.name,
        unit="" if unit == "none" else "%",
        digits=digits if unit == "none" else 2,
        higher_is_better=not lower,
        reading=f"The column {column} is read {SHOWN[unit]}; {better} is better.{counted}",
    )
    return origin, unit


def _trial(line: Line | None, seed: int, unit: str, origin: Origin) -> TrialResult:
    """Return the entry of a trial, which is missing if the file has no line for it."""
    if line is None or line.score is None:
        return TrialResult(seed=seed, state=line.state if line else "missing", config_hash="")
    scale = 100 if unit == "percent" else 1
    value = float(line.score / scale)
    written = 10.0 ** int(line.score.as_tuple().exponent) / scale
    if line.images and abs(value - line.images.mean) > written / 2 + 1e-6:
        raise InputError(
            f"{line.place}: the score is {line.score}, but its predictions give"
            f" {scale * line.images.mean:.6g}"
        )
    numbers = assign_fields(TrialResult, {f"test_{origin.score}": value})
    return TrialResult(seed=seed, state=line.state, config_hash="", **numbers)


def trials_csv(study: Study, doc: StudyResult, states: Mapping[str, TrialState]) -> str:
    """Return the trials of a study as a file that ``read_results_file`` takes.

    That function reads predictions of classes only, so those of other tasks are not named.
    """
    trials = study.trials([row.variant for row in doc.rows]) if doc.headline.unit == "%" else ()
    files = {
        (trial.config_hash, trial.spec.seed): states[trial.folder].predictions for trial in trials
    }
    score = f"test_{doc.headline.name}"
    rows = [
        (
            *(row.variant, trial.seed, trial.state, trial.number(score)),
            files.get((trial.config_hash, trial.seed)),
        )
        for row in doc.rows
        for trial in row.trials
    ]
    return to_csv([("variant", "seed", "state", score, "predictions"), *rows]).rstrip("\n")
