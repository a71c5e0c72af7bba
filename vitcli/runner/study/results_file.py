"""Results of any program: a CSV file with one trial a row becomes the document of a study.

The file has the columns variant, seed and score. Three more are used if they are there: state,
predictions, which names a file with what the trial says of each test image, and planned_seeds.
Exports of W&B and MLflow have the same columns with prefixes. No torch.
"""

import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from numbers import Integral, Real
from pathlib import Path
from typing import NamedTuple, cast, get_args

from vitcli.core.spec.metrics import METRICS, Metric, metric_of_column
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.files import read_bounded, sha256
from vitcli.runner.run.folder import RESULT_STATES
from vitcli.runner.run.predictions import PerImage
from vitcli.runner.run.record import TrialState, assign_fields
from vitcli.runner.study.definition import Study
from vitcli.runner.study.image_file import read_images
from vitcli.runner.study.images import with_scores
from vitcli.runner.study.result import (
    MIN_PAIRS,
    Origin,
    Plan,
    State,
    StudyResult,
    TrialResult,
    VariantResult,
    sort_seeds,
)
from vitcli.runner.study.statistics import num_tests
from vitcli.runner.tables import csv_text, read_csv, to_csv
from vitcli.runner.text import closest, did_you_mean, printable, quantity, shorten

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
    "planned": ("planned_seeds",),
    "comparisons": ("comparisons",),
    "score": ("score",),
}
"""Use -> what its column may be called, behind one of ``PREFIXES`` and in any case."""
PREFIXES = re.compile(r"^(params|metrics|config|summary)\.")
STATES = {
    **{"crashed": "failed", "error": "failed", "completed": "finished"},
    **dict.fromkeys(("killed", "preempting", "preempted", "cancelled", "timeout"), "interrupted"),
    **dict.fromkeys(("scheduled", "pending", "queued"), "missing"),
}
"""States of W&B, MLflow and Slurm that have another name here."""
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d{1,3})?", re.ASCII | re.IGNORECASE)
WITH_COMMA = re.compile(r"[+-]?\d*,\d+", re.ASCII)
GROUPED = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}", re.ASCII)
"""A number that has a decimal comma or a comma between thousands."""
SUMMARIES = {
    *("mean", "std", "avg", "average", "all", "total", "sum", "median", "min", "max"),
    *("sd", "sem", "stdev", "overall", "nan", "none"),
}
"""Seeds of rows that are no trials, in small letters."""
NUMBERED = re.compile(r"\D*\d+")
MAX_DIGITS = 4
MAX_PLAN = 1_000_000
MAX_NAME = 200
SMALLEST = 0.001
"""Scores below it would have too few digits in tables and files."""
SMALLEST_DIFFERENCE = 1e-10
"""Statistics are rounded to 12 decimal places, so a smaller difference would have too few."""
NOISE = 1e-12
"""Relative size of differences that are only rounding errors of a program."""


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
    """How scores are written. By default shares are in percent if all are above 1."""
    lower_is_better: bool | None = None
    """By default as the words of the score's name say; a name that does not say it needs it."""
    margin: float | None = None
    """Margin of equivalence, in the unit of the table."""
    plan: int | None = None
    """Number of seeds planned before the first result. By default as a file of vitcli says, or the
    number of seeds in the file."""

    def typed(self, use: str, value: object) -> str:
        if use == "lower_is_better":
            return "--lower-is-better" if value else "--higher-is-better"
        return f"--{'pairs' if use == 'seed' else use} {shlex.quote(str(value))}"


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
            "plan": (Integral, "a whole number"),
        }
        for name, value in vars(self).items():
            kind, text = kinds.get(name, (str, "a text"))
            is_flag = isinstance(value, bool) and kind is not bool
            if value is not None and (is_flag or not isinstance(value, kind)):
                raise ConfigError(f"{self.typed(name, value)}: must be {text}")

    def typed(self, use: str, value: object) -> str:
        return f"{use}={value!r}"


class Line(NamedTuple):
    """A trial of the file; only a finished one has a score."""

    place: str
    """File and number of the line, for messages."""
    variant: str
    seed: str
    state: State
    score: Decimal | None
    images: PerImage | None


def read_results_file(path: Path, choices: Choices, command: str) -> tuple[StudyResult, list[str]]:
    """Return the document of a CSV file; see ``read_text``."""
    try:
        content = read_bounded(path, MAX_FILE)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"{path}: not a CSV file: {error}") from error
    return read_text(csv_text(content, str(path)), str(path), choices, command)


def read_text(
    text: str, name: str, choices: Choices, command: str
) -> tuple[StudyResult, list[str]]:
    """Return the document of the text of a CSV file, and the columns that were not used."""
    rows = list(read_csv(text, name))
    if len(rows) < 2:
        raise InputError(f"{name}: it needs a header and a row for each trial")
    (_, header), *body = rows
    columns = _columns(header, body[0][1], name, choices)
    trials = [
        (place, {use: row[header.index(each)] for use, each in columns.items()})
        for place, row in body
    ]
    finished = {at: cells["score"] for at, cells in trials if _state(cells, at) == "finished"}
    scores, choices, remarks = _scores(finished, choices)
    lines: dict[tuple[str, str], Line] = {}
    for place, cells in trials:
        line = _line(place, cells, scores.get(place), Path(name).parent)
        other = lines.setdefault((line.variant, line.seed), line)
        if other is not line and {line.state, other.state} <= {*RESULT_STATES}:
            raise InputError(
                f"{other.place} and line {place.rpartition(' ')[2]} are both {line.variant} with"
                f" seed {line.seed}; keep one of them"
            )
        if line.state in RESULT_STATES:
            lines[line.variant, line.seed] = line
    _refuse_summary([*lines.values()])
    if repeated := len(trials) - len(lines):
        left_out = quantity(repeated, "unfinished row")
        remarks += f" Not counted: {left_out} of trials that have another row."
    unused = [each for each in header if each not in columns.values()]
    plan = _plan({cells["planned"] for _, cells in trials if "planned" in cells}, name, choices)
    if plan and "planned" in columns:  # written by vitcli, in the order of the looks
        seeds = (cells["seed"] for _, cells in trials)
        plan = plan.replace(order=tuple(dict.fromkeys(int(s) for s in seeds if s.isdecimal())))
    doc = _document(list(lines.values()), columns["score"], choices, text, name, remarks, plan)
    stated = {cells.get("comparisons", "") for _, cells in trials}
    compared = [int(text) for text in stated if re.fullmatch("[0-9]{1,4}", text)]
    comparisons = max([doc.num_comparisons, *compared])
    return doc.replace(command=command, plan=plan, num_comparisons=comparisons), unused


def _refuse_summary(lines: Sequence[Line]) -> None:
    found = [line for line in lines if line.seed.casefold() in SUMMARIES]
    rest = [line for line in lines if line not in found]
    if found and rest and all(NUMBER.fullmatch(line.seed) for line in rest):
        place, seed = found[0].place, found[0].seed
        raise InputError(f"{place}: the seed {seed!r} is no trial of its own; remove such rows")


def _plan(stated: Collection[str], name: str, choices: Choices) -> Plan | None:
    """Return the plan of the file or of the call; None if neither has one."""
    written = {_whole(text) for text in stated if text}
    texts = sorted(written) or ([] if choices.plan is None else [str(choices.plan)])
    if not texts:
        return None
    is_whole = texts[0].isascii() and texts[0].isdigit() and len(texts[0]) <= 7
    if len(texts) > 1 or not is_whole or not MIN_PAIRS <= int(texts[0]) <= MAX_PLAN:
        what = f"{name}: planned_seeds" if written else choices.typed("plan", choices.plan)
        raise ConfigError(f"{what}: a plan is one number from {MIN_PAIRS} to {MAX_PLAN:,}")
    if choices.plan is not None and int(texts[0]) != choices.plan:
        raise ConfigError(
            f"{choices.typed('plan', choices.plan)}: {name} says that {texts[0]} seeds were"
            " planned before the first result; leave the option out"
        )
    return Plan(seeds=int(texts[0]))


def _columns(
    header: Sequence[str], first: Sequence[str], name: str, choices: Choices
) -> dict[str, str]:
    """Return use -> column: variant, seed, score, and the optional ones that the file has."""
    plain = {PREFIXES.sub("", each): each for each in reversed(header)}
    folded = {each.casefold(): column for each, column in plain.items()}
    folded |= {each.casefold(): each for each in reversed(header)}
    folded |= {each: each for each in header}
    plain |= {each: each for each in header}
    found: dict[str, str] = {}
    for use, names in NAMES.items():
        chosen = getattr(choices, use, None)
        if chosen is not None and chosen not in plain:
            hint = did_you_mean(chosen, header) or f"; columns: {', '.join(header)}"
            raise ConfigError(f"{choices.typed(use, chosen)}: {name} has no such column{hint}")
        column = plain[chosen] if chosen else next(filter(None, map(folded.get, names)), None)
        rest = [each for each in header if each not in found.values()]
        if column is None and use == "score":
            metrics = [each for each in rest if each.startswith("metrics.")] or rest  # of MLflow
            column = metrics[0] if len(metrics) == 1 else None
        if column is not None:
            found[use] = column
        elif use in ("variant", "seed", "score"):
            words = [each for each in rest if not _is_number(first[header.index(each)])]
            kept = found.get("variant") or choices.seed or folded.get("seed")
            others = [each for each in rest if each != kept]
            is_wide = use != "score" and kept and len(others) > 1
            if is_wide and (
                not words if use == "variant" else all(map(NUMBERED.fullmatch, others))
            ):
                raise InputError(
                    f"{name}: no column {use!r}; write one trial a row, not one column a {use};"
                    f" with pandas: frame.melt({kept!r}, var_name={use!r}, value_name='score')"
                )
            only = words[0] if use == "variant" and len(words) == 1 else None
            option = choices.typed(use, closest(use, rest) or only or "COLUMN")
            raise InputError(
                f"{name}: no column {use!r}; type {option}; columns: {', '.join(header)}"
            )
    uses: dict[str, str] = {}
    for use, column in found.items():
        if (other := uses.setdefault(column, use)) != use:
            raise ConfigError(f"{name}: the column {column!r} cannot be both {other} and {use}")
        if header.count(column) > 1:
            raise InputError(f"{name}: {header.count(column)} columns are called {column!r}")
    return found


def _is_number(cell: str) -> bool:
    return bool(NUMBER.fullmatch(cell.rstrip(" %").replace(",", ".")))


def _state(cells: Mapping[str, str], place: str) -> State:
    given = cells.get("state", "").casefold() or "finished"
    state = STATES.get(given, given)
    if state not in get_args(State):
        hint = did_you_mean(state, get_args(State))
        raise InputError(f"{place}: state {_shown(given)!r} is not known{hint}")
    return cast(State, state)


def _scores(texts: Mapping[str, str], choices: Choices) -> tuple[dict[str, Decimal], Choices, str]:
    """Return place -> score, the choices with the unit that percent signs say, and a remark."""
    signed = [place for place, text in texts.items() if text.endswith("%")]
    if signed and choices.unit == "fraction":
        raise ConfigError(f"{choices.typed('unit', 'fraction')}: {signed[0]}: it is in percent")
    if signed and not choices.unit:
        if bare := next((place for place, text in texts.items() if text[-1:] != "%"), None):
            raise InputError(
                f"{bare}: the score has no percent sign, but others have one; if all are in"
                f" percent, type {choices.typed('unit', 'percent')}"
            )
        choices = replace(choices, unit="percent")
    plain = {place: text.removesuffix("%").rstrip() for place, text in texts.items()}
    commas = [place for place, text in plain.items() if WITH_COMMA.fullmatch(text)]
    has_points = any("." in text for text in plain.values())
    if commas and (has_points or all(GROUPED.fullmatch(plain[place]) for place in commas)):
        raise InputError(
            f"{commas[0]}: the comma in {plain[commas[0]]} may be a decimal point or stand between"
            " thousands; write all scores with a decimal point"
        )
    numbers = {
        place: _number(text.replace(",", ".") if commas else text, place)
        for place, text in plain.items()
    }
    return numbers, choices, " Its commas are decimal points." if commas else ""


def _number(text: str, place: str) -> Decimal:
    value = Decimal(text if NUMBER.fullmatch(text) and len(text) <= MAX_NAME else "nan")
    if not value.is_finite() or abs(value) > 1e39 or int(value.as_tuple().exponent) > 39:
        raise InputError(
            f"{place}: the score is {_shown(text) or 'empty'}, which is no number; if the trial"
            " diverged or failed, say so in a column 'state'"
        )
    return value


def _whole(text: str) -> str:
    """Return a whole number without the ``.0`` of pandas, if another row has no number."""
    return re.sub(r"^(\d+)\.0+$", r"\1", text)


def _shown(text: str) -> str:
    return shorten(printable(text), 40)


def _line(place: str, cells: Mapping[str, str], score: Decimal | None, folder: Path) -> Line:
    """Return the trial of a row: use -> cell."""
    for use in ("variant", "seed"):
        if not cells[use]:
            raise InputError(f"{place}: the {use} is empty")
        if len(cells[use]) > MAX_NAME:
            raise InputError(f"{place}: the {use} has more than {MAX_NAME} characters")
    file = cells.get("predictions")
    return Line(
        place=place,
        variant=cells["variant"],
        seed=_whole(cells["seed"]),
        state=_state(cells, place),
        score=score,
        images=read_images(folder, file, place) if file and score is not None else None,
    )


def _document(
    lines: Sequence[Line],
    column: str,
    choices: Choices,
    text: str,
    name: str,
    remarks: str,
    plan: Plan | None,
) -> StudyResult:
    texts = list(dict.fromkeys(line.seed for line in lines))
    seeds = {each: int(each) for each in texts if each.isascii() and each.isdigit()}
    if len(set(seeds.values())) < len(texts):
        seeds = {each: i for i, each in enumerate(texts)}
        remarks += " The seeds are no whole numbers, so they are counted from 0."
    origin, unit = _origin(lines, column, choices, name, remarks)
    names = list(dict.fromkeys(line.variant for line in lines))
    first = choices.baseline or names[0]
    if first not in names:
        hint = did_you_mean(first, names) or f"; choose one of {', '.join(names)}"
        raise ConfigError(f"{choices.typed('baseline', first)}: {name} has no such variant{hint}")
    rows, images = [], []
    by_seed = {line.seed: line.score for line in lines if line.variant == first}
    for variant in sorted(names, key=lambda each: each != first):
        own = {seeds[line.seed]: line for line in lines if line.variant == variant}
        pairs = [(line.score, by_seed.get(line.seed)) for line in own.values()]
        _refuse_tiny(f"{name}: {variant} and {first}", pairs, unit)
        trials = [_trial(own.get(seed), seed, unit, origin) for seed in sorted(seeds.values())]
        rows.append(VariantResult(variant=variant, trials=tuple(trials)))
        images.append({s: line.images for s, line in own.items() if line.state == "finished"})
    margin = choices.margin
    if margin is not None and not 0 < margin < 1e39:
        raise ConfigError(f"{choices.typed('margin', margin)}: a margin is a number above 0")
    return StudyResult(
        name=Path(name).stem,
        command="",
        data="",
        epochs=0,
        num_test=next((len(line.images.scores) for line in lines if line.images), None),
        num_comparisons=len(rows) - 1,
        base_config={},
        margin=margin,
        origin=origin.replace(file=Path(name).name, sha256=sha256(text.encode())),
        rows=with_scores(rows, images, origin.metric, plan),
    )


def _refuse_tiny(
    names: str, pairs: Sequence[tuple[Decimal | None, Decimal | None]], unit: str
) -> None:
    """Refuse differences that the statistics would round to 0, unless they are rounding errors."""
    known = [(a, b) for a, b in pairs if a is not None and b is not None]
    largest = max((float(abs(a - b)) for a, b in known), default=0.0)
    noise = NOISE * max((float(abs(a)) for a, _ in known), default=0.0)
    if noise < largest < SMALLEST_DIFFERENCE / (100 if unit == "fraction" else 1):
        raise InputError(
            f"{names} differ by {largest:.1g} at most, which statistics would round away;"
            " subtract the same number from all scores and write the rest in a smaller unit"
        )


def _origin(
    lines: Sequence[Line], column: str, choices: Choices, file: str, remarks: str
) -> tuple[Origin, str]:
    """Return the source of the scores, and how all of them are written."""
    name, lower = PREFIXES.sub("", column), choices.lower_is_better
    metric = metric_of_column(name)
    if metric is None and lower is None:
        higher, below = (choices.typed("lower_is_better", each) for each in (False, True))
        raise ConfigError(
            f"{file}: is a higher or a lower {_shown(column)} better? Type {higher} or {below}"
        )
    metric = metric or Metric(name=name, label=name)
    scores = {line.place: line.score for line in lines if line.score is not None}
    is_share = metric.unit == "%" or any(line.images for line in lines)
    above = [place for place, score in scores.items() if score > 1]
    fractions = [
        place
        for place, score in scores.items()
        if 0 < score < 1 or (score == 1 and metric.higher_is_better)  # no error is 100 %
    ]
    if is_share and above and fractions and not choices.unit:
        raise InputError(
            f"{fractions[0]}: the score is {scores[fractions[0]]}, but line"
            f" {above[0].rpartition(' ')[2]} has {scores[above[0]]}: fractions beside percent?"
            f" If all are in percent, type {choices.typed('unit', 'percent')}; to write all as"
            f" fractions, correct the file and type {choices.typed('unit', 'fraction')}"
        )
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
    lower = not metric.higher_is_better if lower is None else lower
    places = max([1, *(-int(score.as_tuple().exponent) for score in scores.values())])
    digits = (
        metric.digits if metric.name in METRICS and not metric.unit else min(MAX_DIGITS, places + 1)
    )
    better = "lower" if lower else "higher"
    origin = Origin(
        file="",
        sha256="",
        score=metric.name,
        unit="" if unit == "none" else "%",
        digits=digits if unit == "none" else 2,
        higher_is_better=not lower,
        reading=f"The column {column} is read {SHOWN[unit]}; {better} is better.{remarks}",
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
    order = sort_seeds({trial.seed for row in doc.rows for trial in row.trials}, doc.plan)
    rows = [
        (
            *(row.variant, trial.seed, trial.state, trial.number(score)),
            doc.planned_seeds,
            num_tests(doc),
            files.get((trial.config_hash, trial.seed)),
        )
        for row in doc.rows
        for trial in sorted(row.trials, key=lambda trial: order.index(trial.seed))
    ]
    header = ("variant", "seed", "state", score, "planned_seeds", "comparisons", "predictions")
    return to_csv([header, *rows]).rstrip("\n")
