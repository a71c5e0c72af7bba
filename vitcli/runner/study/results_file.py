"""Results of any program: a CSV file with one trial a row becomes the document of a study.

The file has the columns variant, seed and score. Two more are used where they are: state, and
predictions, which names a file with what each trial says of each test image. Exports of W&B and
MLflow have the same columns with prefixes. No torch.
"""

import contextlib
import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Literal, cast, get_args

from vitcli.core.spec.metrics import METRICS, Metric
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.files import read_bounded, sha256
from vitcli.runner.run.folder import RESULT_STATES
from vitcli.runner.run.predictions import PerImage
from vitcli.runner.run.record import assign_fields
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
from vitcli.runner.study.states import TrialState
from vitcli.runner.tables import to_csv
from vitcli.runner.text import did_you_mean

Unit = Literal["percent", "fraction", "none"]
MAX_FILE = 1 << 28
"""Largest size of a file in bytes."""
NAMES = {
    "variant": ("variant", "group"),
    "seed": ("seed",),
    "state": ("state", "status"),
    "predictions": ("predictions",),
}
"""Column -> what it may be called, behind one of ``PREFIXES`` and in any case."""
PREFIXES = ("params.", "metrics.", "config.", "summary.", "test_")
STATES = {"crashed": "failed", "killed": "interrupted", "scheduled": "missing"}
"""States of W&B and MLflow that have another name here."""
MAX_DIGITS = 4


@dataclass(frozen=True, kw_only=True)
class Choices:
    """How to read a file, where it leaves a choice. None takes the default."""

    score: str | None = None
    """Column of the score. By default ``score``, or the only column with a known metric."""
    variant: str | None = None
    seed: str | None = None
    baseline: str | None = None
    """Variant that the others are compared with. By default the first one."""
    unit: Unit | None = None
    higher_is_better: bool | None = None
    margin: float | None = None
    """Margin of equivalence, in the unit of the table."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """A trial of the file; only a finished one has a score."""

    place: str
    """File and number of the line."""
    variant: str
    seed: str
    state: State
    score: Decimal | None
    """As it is written."""
    images: PerImage | None


def read_results(path: Path, choices: Choices, command: str) -> tuple[StudyResult, list[str]]:
    """Return the document of a CSV file, and the columns that were not used.

    Raises:
        InputError: The file is missing, damaged or contradicts itself.
        ConfigError: A choice does not fit the file.
    """
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
    """Return the document of the text of a CSV file; ``name`` is its path or a name for it."""
    rows = list(_rows(text, name))
    if len(rows) < 2:
        raise InputError(f"{name}: no trial below the header; it needs one row for each trial")
    (_, header), *body = rows
    columns = _columns(header, name, choices)
    lines = []
    for number, row in body:
        cells = dict(zip(header, row, strict=True))
        lines.append(_line(f"{name}:{number}", {use: cells[c] for use, c in columns.items()}))
    _refuse_duplicates(lines)
    unused = [each for each in header if each not in columns.values()]
    return _document(lines, columns["score"], text, name, choices, command), unused


def _rows(text: str, name: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of the last line, and the cells, of each row that is not empty."""
    first = text.partition("\n")[0]
    reader = csv.reader(io.StringIO(text), delimiter=max(",;\t", key=first.count), strict=True)
    try:
        width = 0
        for row in reader:
            cells = [cell.strip() for cell in row]
            width = width or len(cells)
            if len(cells) != width:
                raise InputError(
                    f"{name}:{reader.line_num}: {len(cells)} cells, but the header has {width}"
                )
            if any(cells):
                yield reader.line_num, cells
    except csv.Error as error:
        raise InputError(f"{name}:{reader.line_num}: not a row of a CSV file: {error}") from error


def plain_name(column: str) -> str:
    """Return the name of a column without the prefixes of W&B, MLflow and vitcli."""
    for prefix in PREFIXES:
        column = column.removeprefix(prefix)
    return column


def _columns(header: Sequence[str], name: str, choices: Choices) -> dict[str, str]:
    """Return use -> column: variant, seed, score, and the optional ones that the file has."""
    found: dict[str, str] = {}
    for use, names in NAMES.items():
        known = {plain_name(each).casefold(): each for each in reversed(header)}
        if chosen := getattr(choices, use, None):
            found[use] = _chosen(use, chosen, header, name)
        elif column := next((known[each] for each in names if each in known), None):
            found[use] = column
    found["score"] = _score_column(header, name, choices)
    for use in ("variant", "seed"):
        if use not in found:
            raise InputError(
                f"{name}: no column {use!r}{did_you_mean(use, header)}; name it with"
                f" --{use} COLUMN; columns: {', '.join(header)}"
            )
    for column in found.values():
        if header.count(column) > 1:
            raise InputError(f"{name}: {header.count(column)} columns are called {column!r}")
    return found


def _chosen(use: str, chosen: str, header: Sequence[str], name: str) -> str:
    known = {plain_name(each): each for each in header} | {each: each for each in header}
    if chosen not in known:
        hint = did_you_mean(chosen, header) or f"; columns: {', '.join(header)}"
        raise ConfigError(f"--{use} {chosen}: {name} has no such column{hint}")
    return known[chosen]


def _score_column(header: Sequence[str], name: str, choices: Choices) -> str:
    if choices.score:
        return _chosen("score", choices.score, header, name)
    named = [each for each in header if plain_name(each).casefold() == "score"]
    measured = [each for each in header if plain_name(each) in METRICS]
    for found in (named, measured):
        if len(found) == 1:
            return found[0]
    hint = "" if measured else did_you_mean("score", header)
    raise InputError(
        f"{name}: which column is the score?{hint.replace(';', '')} Name it with --score COLUMN;"
        f" columns: {', '.join(header)}"
    )


def _line(place: str, cells: Mapping[str, str]) -> Line:
    """Return the trial of a row, whose cells are given by their use."""
    for use in ("variant", "seed"):
        if not cells[use]:
            raise InputError(f"{place}: the {use} is empty")
    given = cells.get("state", "").casefold() or "finished"
    state = STATES.get(given, given)
    if state not in get_args(State):
        hint = did_you_mean(state, get_args(State))
        raise InputError(f"{place}: state {cells['state']!r} is not known{hint}")
    is_finished = state == "finished"
    images = None
    if is_finished and (file := cells.get("predictions")):
        images = read_images(Path(place).parent, file, place)
    return Line(
        place=place,
        variant=cells["variant"],
        seed=cells["seed"].removesuffix(".0"),  # pandas, if another row has no seed
        state=cast(State, state),
        score=_number(cells["score"], place) if is_finished else None,
        images=images,
    )


def _number(text: str, place: str) -> Decimal:
    with contextlib.suppress(InvalidOperation):
        value = Decimal(text)
        if abs(value) < Decimal("1e39"):  # neither infinity nor NaN
            return value
    raise InputError(
        f"{place}: the score is {text or 'empty'}, which is no number; if the trial diverged or"
        " failed, say so in a column 'state'"
    )


def _refuse_duplicates(lines: Sequence[Line]) -> None:
    seen: dict[tuple[str, str], Line] = {}
    for line in lines:
        other = seen.setdefault((line.variant, line.seed), line)
        if other is not line:
            number = line.place.rpartition(":")[2]
            raise InputError(
                f"{other.place} and line {number} are both {line.variant} with seed {line.seed};"
                " keep one of them"
            )


def _document(
    lines: Sequence[Line], column: str, text: str, name: str, choices: Choices, command: str
) -> StudyResult:
    texts = list(dict.fromkeys(line.seed for line in lines))
    is_number = all(each.isascii() and each.isdigit() for each in texts)
    seeds = {each: int(each) if is_number else i for i, each in enumerate(texts)}
    metric = METRICS.get(score := plain_name(column)) or Metric(name=score, label=score)
    unit = _unit(lines, metric, choices)
    origin = Origin(
        file=Path(name).name,
        sha256=sha256(text.encode()),
        score=metric.name,
        unit="" if unit == "none" else "%",
        digits=_digits(lines, metric, unit),
        higher_is_better=_higher(metric, choices),
        reading=_reading(column, unit, higher=_higher(metric, choices), is_number=is_number),
    )
    names = list(dict.fromkeys(line.variant for line in lines))
    first = choices.baseline or names[0]
    if first not in names:
        hint = did_you_mean(first, names) or f"; choose one of {', '.join(names)}"
        raise ConfigError(f"--baseline {first}: {name} has no such variant{hint}")
    rows, images = [], []
    for variant in sorted(names, key=lambda each: each != first):
        own = {seeds[line.seed]: line for line in lines if line.variant == variant}
        trials = [_trial(own.get(seed), seed, unit, origin) for seed in sorted(seeds.values())]
        rows.append(VariantResult(variant=variant, trials=tuple(trials)))
        images.append({s: line.images for s, line in own.items() if line.state == "finished"})
    known = [each for found in images for each in found.values() if each]
    return StudyResult(
        name=Path(name).stem,
        command=command,
        data="",
        epochs=0,
        num_test=len(known[0].scores) if known else None,
        num_comparisons=len(rows) - 1,
        base_config={},
        margins=_margins(choices.margin, lines),
        origin=origin,
        rows=with_scores(rows, images, origin.metric),
    )


def _margins(points: float | None, lines: Sequence[Line]) -> tuple[Margin, ...]:
    """Return the margin as one that is declared today, when these results are known."""
    if points is None:
        return ()
    if not 0 < points < math.inf:
        raise ConfigError(f"--margin {points:g}: a margin is a number above 0")
    done = sum(line.state in RESULT_STATES for line in lines)
    return (Margin(points=points, date=date.today().isoformat(), num_finished=done),)


def _unit(lines: Sequence[Line], metric: Metric, choices: Choices) -> Unit:
    """Return how all scores are written: one rule for the file, none for a single row."""
    scores = {line.place: line.score for line in lines if line.score is not None}
    unit = choices.unit
    if unit is None:
        is_share = metric.unit == "%" or any(line.images for line in lines)
        above = any(score > 1 for score in scores.values())
        unit = "none" if not is_share else "percent" if above else "fraction"
    limit = {"percent": 100, "fraction": 1, "none": 0}[unit]
    for place, score in scores.items():
        if limit and not 0 <= score <= limit:
            raise InputError(
                f"{place}: the score is {score}, but {unit} lies between 0 and {limit};"
                " --unit none takes the scores as they are"
            )
    return unit


def _higher(metric: Metric, choices: Choices) -> bool:
    chosen = choices.higher_is_better
    return metric.higher_is_better if chosen is None else chosen


def _reading(column: str, unit: Unit, *, higher: bool, is_number: bool) -> str:
    shown = {"percent": "in percent", "fraction": "as a fraction of 1", "none": "as it stands"}
    counted = "" if is_number else " The seeds are no whole numbers and are counted from 0."
    better = "higher" if higher else "lower"
    return f"The column {column} is read {shown[unit]}; {better} is better.{counted}"


def _digits(lines: Sequence[Line], metric: Metric, unit: Unit) -> int:
    """Return the decimal places to show: those of the metric, or one more than the file has."""
    if unit != "none":
        return 2
    if metric.name in METRICS:
        return metric.digits
    places = [-int(line.score.as_tuple().exponent) for line in lines if line.score is not None]
    return min(MAX_DIGITS, max([1, *places]) + 1)


def _trial(line: Line | None, seed: int, unit: Unit, origin: Origin) -> TrialResult:
    """Return the entry of a trial, which is missing if the file has no line for it."""
    if line is None:
        return TrialResult(seed=seed, state="missing", config_hash="")
    numbers = {}
    if line.score is not None:
        value = line.score / 100 if unit == "percent" else line.score
        if line.images:
            _refuse_contradiction(line, value, line.images.mean, unit)
        numbers = assign_fields(TrialResult, {f"test_{origin.score}": float(value)})
    return TrialResult(seed=seed, state=line.state, config_hash="", **numbers)


def _refuse_contradiction(line: Line, value: Decimal, mean: float, unit: Unit) -> None:
    """Refuse predictions whose mean is not the score, as far as the score is written."""
    written = 10.0 ** int(line.score.as_tuple().exponent) if line.score else 0.0
    allowed = 0.5 * written / (100 if unit == "percent" else 1)
    if abs(float(value) - mean) > allowed + 1e-6:
        raise InputError(
            f"{line.place}: the score is {line.score}, but its predictions give"
            f" {100 * mean if unit == 'percent' else mean:.6g}"
        )


def trials_csv(study: Study, doc: StudyResult, states: Mapping[str, TrialState]) -> str:
    """Return the trials of a study as a file that ``read_results`` takes."""
    files = {
        (trial.variant, trial.config_hash, trial.spec.seed): states[trial.folder].predictions
        for trial in study.trials()
        if trial.folder in states
    }
    score = f"test_{doc.headline.name}"
    rows = [
        [
            *(row.variant, trial.seed, trial.state, trial.number(score)),
            files.get((row.variant, trial.config_hash, trial.seed)),
        ]
        for row in doc.rows
        for trial in row.trials
    ]
    return to_csv([["variant", "seed", "state", score, "predictions"], *rows]).rstrip("\n")
