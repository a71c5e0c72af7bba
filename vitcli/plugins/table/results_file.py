"""Results of any program: a CSV file with one trial a row becomes the document of a study."""

import os
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from itertools import compress, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar

import numpy as np
from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, ValidationError

from vitcli.core.spec import Spec
from vitcli.plugins.table.answers import are_right, read_images, results_of
from vitcli.plugins.table.score import PREFIX, key_of, metric_of_column
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.files import sha256
from vitcli.runner.report.tables import csv_text, delimiter_of, maybe_thousands, read_csv
from vitcli.runner.run.record import RunRecord, State
from vitcli.runner.study.collect import study_result
from vitcli.runner.study.result import MIN_PAIRS, Origin, Plan, StudyResult
from vitcli.runner.text import composed, natural_key, portable, printable, quantity, shorten

if TYPE_CHECKING:
    from vitcli.api import ResultTable

REQUIRED = ("variant", "seed", "score")
METRIC_COLUMN = re.compile(r"\.?metric(.?name)?|measure|scorer|scoring", re.IGNORECASE)
"""Name of a column that says what a column ``score`` measures."""
NOT_SEEDS = re.compile(
    r"(?P<fold>(?<!scaf)(?<!mani)(?<!blind)(?<!\bun)(?<!\bre)fold(?!er|ed|ing|able)"
    r"|(?<![a-z])cv(?=(s|idx?|index|no?|num|number|run|rep)?\d*\b)|cross.?val|xval"
    r"|\bouter( (loop|idx?|index|no|num|number))? ?\d*$"
    r"|leave.?one|\bloo(cv)?\b|\blo[sdphuv]o(cv)?\b|held.?out|left.?out|(?<!slurm )partition"
    r"|\b(test|val|valid|validation|eval|unseen) (subject|patient|participant|speaker|user|site"
    r"|hospital|center|centre|scanner|domain|group|envs?)\b|\btarget domain\b"
    r"|(?<![a-z])(?!(hold|drop|roll|fan|timed?|dim|std|log|read|print|check|fade) )[a-z]+ out\b)"
    r"|(?P<part>split|bootstrap|resampl|\bhold.?out|\bmccv\b|monte.?carlo)"
    r"|(epoch|step|iteration|\biter\b)"
)
"""Words of names of columns, or of seeds, whose rows are no independent trainings."""
SEED = re.compile(r"seed|random.?state", re.IGNORECASE)
"""Names of columns whose rows are independent trainings."""
CROSS_VALIDATE = {"fit_time", "score_time"}
"""Columns of scikit-learn's ``cross_validate``."""
NEW_WORD = re.compile(r"_|(?<=[a-z0-9])(?=[A-Z])")
"""Where a word of such a name begins."""
UNIT_WORDS: dict[Literal["percent", "fraction"], re.Pattern[str]] = {
    "percent": re.compile(r"%|(?<![a-z])(percent|pct|percentage)(?![a-z])", re.IGNORECASE),
    "fraction": re.compile(r"(?<![a-z])(fraction|proportion)\W*$", re.IGNORECASE),
}
"""Words by which the name of a column says its unit."""
STATES = {
    **dict.fromkeys(("completed", "complete", "success", "succeeded", "done", "ok"), "finished"),
    **dict.fromkeys(("crashed", "error", "fail", "node_fail", "out_of_memory"), "failed"),
    **dict.fromkeys(("killed", "preempting", "preempted", "pruned", "timeout"), "interrupted"),
    **dict.fromkeys(("cancelled", "canceled", "stopped"), "interrupted"),
    **dict.fromkeys(("scheduled", "pending", "queued"), "missing"),
}
"""States of W&B, MLflow, Slurm and Optuna that have another name here."""
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d\d?)?", re.ASCII | re.IGNORECASE)
WHOLE = re.compile(r"(-?\d{1,40})([.,]0+)?", re.ASCII)
"""A whole number, perhaps as pandas writes it beside empty cells."""
UNITS = {"percent": "in percent", "fraction": "as a fraction of 1", "none": "as it stands"}
ONE_REPETITION = "keep one repetition, or one row a repetition with the mean of its folds"
MAX_NAME = 200
Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME), AfterValidator(composed)]
Model = TypeVar("Model", bound=BaseModel)
KnownState = Annotated[State, BeforeValidator(lambda text: STATES.get(text.lower(), text.lower()))]
Count = Annotated[int, Field(ge=0, le=1_000_000)]
PlannedSeeds = Annotated[Count, Field(ge=MIN_PAIRS)]


class Choices(Spec):
    """How to read a file, where it leaves a choice: the options of ``vitcli table``."""

    score: str | None = None
    variant: str | None = None
    seed: str | None = None
    baseline: str | None = None
    unit: Literal["percent", "fraction", "none"] | None = None
    lower_is_better: bool | None = None
    margin: Annotated[float, Field(gt=0, lt=1e39)] | None = None
    plan: PlannedSeeds | None = None

    @classmethod
    def of(cls, **given: Any) -> Self:
        plain = {k: v.item() if isinstance(v, np.generic) else v for k, v in given.items()}
        return checked(cls, plain)


class Row(BaseModel):
    """A row of the file. Each field but the first is a column."""

    place: str
    """File and line, for messages."""
    variant: Name
    seed: Name
    state: KnownState = "finished"
    planned_seeds: PlannedSeeds | None = None
    planned_order: Count | None = None
    """Place of the seed in the order in which the study asked for its seeds."""
    comparisons: Count = 0
    """Number of comparisons of the whole study, if the file has not all of its rows."""
    predictions: str = ""
    """File with what the trial says of each test image."""
    score: str = ""


USES = (*Row.model_fields,)[1:]


def checked(kind: type[Model], fields: Mapping[str, Any], place: str = "") -> Model:
    """Return a record of fields; what is wrong with one of them is one line."""
    try:
        return kind(**fields)
    except ValidationError as error:
        first = error.errors()[0]
        given = shorten(printable(repr(first["input"])), 40)
        text = f"{first['loc'][0]} {given}: {first['msg']}"
        raise (InputError(f"{place}: {text}") if place else ConfigError(text)) from error


def read_text(
    text: str, name: str, choices: Choices, command: str, *, in_file_order: bool = False
) -> tuple[StudyResult, list[str], dict[int, str]]:
    """Return the document of the text of a CSV file, and what the document does not hold.

    That is the columns that were not used, and each seed as it is written. ``in_file_order`` counts
    seeds that are names by their first rows, so that a row that is added moves none of them.
    """
    (_, header), *body = _cells(text, name)
    uses = _uses(header, name, choices)
    column, pairs = (header[uses.index(use)] for use in ("score", "seed"))
    rows = _rows(header, uses, body)
    numbers = _seeds(rows, in_file_order=in_file_order)
    folds, plan = _folds(name, pairs, numbers), _plan(name, rows, numbers, choices)
    if folds and plan:  # the file may not have all of them yet
        folds = max(folds, plan.seeds)
    if folds is None:
        _refuse_hidden_folds(name, header, uses, body)
    trials = _trials(rows, numbers)
    variants = list(dict.fromkeys(row.variant for row in rows))
    baseline = composed(choices.baseline or variants[0])
    if baseline not in variants:
        known = ", ".join(map(printable, variants))
        raise ConfigError(f"{name} has no variant {printable(baseline)}; choose one of {known}")
    seeds = sorted({*numbers.values()})
    finished = [row for row in trials.values() if row.state == "finished"]
    files = {row.place: row.predictions for row in finished if row.predictions and not folds}
    measured = _measured(name, column, header, body)
    is_known = measured == column or metric_of_column(measured)
    metric = metric_of_column(
        measured if is_known else column, lower_is_better=choices.lower_is_better
    )
    which = (
        f"is a higher or a lower {printable(column)} better? Type --higher-is-better or"
        " --lower-is-better (lower_is_better in Python)"
    )
    if metric is None or (not is_known and choices.lower_is_better is None):
        raise ConfigError(which)
    texts = {row.place: row.score for row in finished}
    images = read_images(Path(name).parent, files)
    is_share = bool(metric.unit) or are_right(images)
    named = next((u for u, word in UNIT_WORDS.items() if word.search(column)), None)
    asked = choices.unit or named
    is_loss = choices.lower_is_better is None and not metric.higher_is_better
    signs = delimiter_of(text)
    scores, unit, digits = _scores(texts, asked, signs, is_share=is_share, is_loss=is_loss)
    if is_loss and min(scores.values(), default=0) < 0:
        raise ConfigError(f"some scores are below 0, as if the loss were negated; {which}")
    is_doubtful = unit == named == "percent" and not choices.unit and metric.higher_is_better
    if is_doubtful and not any("%" in text for text in texts.values()):
        _refuse_fractions(column, scores)
    better = "higher" if metric.higher_is_better else "lower"
    paired = (
        f" Pairs: {quantity(folds, 'fold')} of one cross-validation, without predictions."
        if folds
        else f" Each {printable(pairs)} counts as an independent training; call the column fold if"
        " it has the folds of one cross-validation."
    )
    origin = Origin(
        file=Path(name).name,
        sha256=sha256(text.encode()),
        score=metric.name,
        unit="" if unit == "none" else "%",
        digits=digits,
        higher_is_better=metric.higher_is_better,
        reading=f"The column {column} is read {UNITS[unit]}; {better} is better."
        + paired * bool(folds or not SEED.search(pairs))
        + " Scores with predictions are the means of these." * bool(images),
    )
    results = results_of(f"test_{metric.name}", scores, images, files)

    def record(variant: str, seed: int) -> RunRecord:
        row = trials.get((variant, seed))
        if row is None:
            return RunRecord(state="missing", seed=seed)
        result, image = results.get(row.place, {}), images.get(row.place)
        return RunRecord(state=row.state, seed=seed, result=result, images=image)

    variants.sort(key=lambda variant: variant != baseline)
    document = study_result(
        {variant: [record(variant, seed) for seed in seeds] for variant in variants},
        where=name,
        name=Path(name).stem,
        command=command,
        data="",
        epochs=0,
        num_comparisons=max(len(variants) - 1, *(row.comparisons for row in rows)),
        base_config={"data.folds": folds} if folds else {},
        margin=choices.margin,
        plan=plan,
        origin=origin,
    )
    unused = [name for name, use in zip(header, uses, strict=True) if use not in USES]
    if measured != column:
        unused = [name for name in unused if not METRIC_COLUMN.fullmatch(PREFIX.sub("", name))]
    return document, unused, {number: printable(seed) for seed, number in numbers.items()}


def _cells(text: str, name: str) -> list[tuple[str, list[str]]]:
    if text.lstrip().startswith(("{", "[")):
        raise InputError(f"{name} must be CSV, not JSON")
    table = [*read_csv(text, name)]
    if len(table) < 2:
        held = "only a header" if table else "no text"
        raise InputError(f"{name} has {held}; write a header and a row for each trial")
    return table


def _uses(header: Sequence[str], name: str, choices: Choices) -> list[str]:
    """Return what each column is: a field of ``Row``, or its own name."""
    plain = [PREFIX.sub("", column).casefold() for column in header]
    uses = ["state" if column == "status" else column for column in plain]
    for use in REQUIRED:
        if chosen := getattr(choices, use):
            names = header if chosen in header else plain
            wanted = chosen if chosen in header else chosen.casefold()
            others = ["" if column == use else column for column in uses]
            uses = [use if n == wanted else x for n, x in zip(names, others, strict=True)]
    rest = [i for i, use in enumerate(uses) if use not in USES]
    if "score" not in uses and not choices.score and len(rest) == 1:
        uses[rest[0]] = "score"
    for use in USES:
        if uses.count(use) > 1 or (use in REQUIRED and use not in uses):
            wanted = getattr(choices, use, None) or use
            names = [x for x, known in zip(header, uses, strict=True) if known == use]
            advice = f"keep one of {', '.join(map(repr, names))}"
            if use in REQUIRED:
                advice = (
                    f"write one trial a row, or type --{'pairs' if use == 'seed' else use} with one"
                    f" of {', '.join(map(repr, header))}"
                )
            raise InputError(f"{name} has {uses.count(use)} columns {wanted!r}; {advice}")
    return uses


def _rows(
    header: Sequence[str], uses: Sequence[str], body: Iterable[tuple[str, list[str]]]
) -> list[Row]:
    rows = []
    for place, cells in body:
        filled = {use: x for use, x in zip(uses, cells, strict=True) if x or use in REQUIRED}
        for use in ("variant", "seed", "state"):
            if use in uses and not cells[uses.index(use)]:
                column = printable(header[uses.index(use)])
                advice = "write finished, running, diverged or failed, in each row"
                advice = advice if use == "state" else "fill it"
                raise InputError(f"{place}: the cell of {column!r} is empty; {advice}")
        rows.append(checked(Row, filled | {"place": place}, place))
    return rows


def _measured(
    name: str, column: str, header: Sequence[str], body: Sequence[tuple[str, list[str]]]
) -> str:
    """Return the name of what a column measures: of a ``score``, that in a column ``metric``."""
    about = [i for i, head in enumerate(header) if METRIC_COLUMN.fullmatch(PREFIX.sub("", head))]
    if not about or key_of(column) != "score":
        return column
    names = {cells[i] for i in about for _, cells in body} - {""}
    if len(names) > 1:
        raise InputError(
            f"{name}: by the column {printable(header[about[0]])}, the scores are of several"
            " metrics; keep the rows of one"
        )
    return names.pop() if names else column


def _trials(rows: Iterable[Row], numbers: Mapping[str, int]) -> dict[tuple[str, int], Row]:
    trials: dict[tuple[str, int], Row] = {}
    for row in rows:
        other = trials.setdefault((row.variant, numbers[row.seed]), row)
        if other is not row:
            line = row.place.rpartition(" ")[2]
            trial = f"{printable(row.variant)} with seed {printable(row.seed)}"
            raise InputError(f"{other.place} and line {line} are both {trial}; keep one of them")
    return trials


def _seeds(rows: Sequence[Row], *, in_file_order: bool) -> dict[str, int]:
    """Return the number of each seed. Texts are counted in their own order, or in that of rows."""
    matches = {row.seed: WHOLE.fullmatch(row.seed) for row in rows}
    texts = [seed for seed, match in matches.items() if not match]
    if not in_file_order:
        texts.sort(key=natural_key)
    if 0 < len(texts) < len(matches):
        place = next(row.place for row in rows if row.seed == texts[0])
        raise InputError(
            f"{place}: the seed {printable(texts[0])!r} is no whole number, but others are; remove"
            " rows that are no trials, such as means"
        )
    counted = {seed: i for i, seed in enumerate(texts)}
    return counted | {seed: int(match[1]) for seed, match in matches.items() if match}


def _folds(name: str, pairs: str, seeds: Mapping[str, int]) -> int | None:
    """Return the number of folds that pair the trials; None if seeds do. Refuse anything else."""
    texts = _varying(pairs, seeds)
    not_seeds = _not_seeds(pairs, texts)
    if not_seeds is None:
        return None
    if not not_seeds["fold"]:
        raise ConfigError(
            f"{name}: each {printable(pairs)} is no independent training; keep one row a training,"
            " with a column seed or, for the folds of one cross-validation, a column fold"
        )
    is_repeated = (len(re.findall(r"\d+", text)) > 1 for text in texts)
    if repeated := next(compress(seeds, is_repeated), ""):
        problem = f"{printable(repeated)} is a fold of a repeated cross-validation"
        raise ConfigError(f"{name}: {problem}; {ONE_REPETITION}")
    return len({*seeds.values()})


def _varying(column: str, seeds: Iterable[str]) -> list[str]:
    """Return what differs: of "fold 1 of 5" the first number, of "seed1_fold0" perhaps the seed."""
    parts = [re.findall(r"\D*\d+|\D+", seed) for seed in seeds]
    columns = [*zip_longest(*parts, fillvalue="")]
    varying = [x for x in columns if len({*x}) > 1 or not re.search(r"\d", x[0])]
    return ["".join(x) for x in zip(*varying, strict=True)] or [column]


def _not_seeds(column: str, texts: Iterable[str]) -> re.Match[str] | None:
    matches = [NOT_SEEDS.search(NEW_WORD.sub(" ", text).casefold()) for text in (column, *texts)]
    # One name among others says nothing, such as that of a data set.
    inside = matches[1] if all(matches[1:]) else None
    return inside if inside and inside["fold"] else matches[0] or inside


def _may_be_seed(text: str) -> bool:
    is_score = NUMBER.fullmatch(text.rstrip("% ")) and not WHOLE.fullmatch(text)
    return not is_score and len(text) <= MAX_NAME


def _refuse_hidden_folds(
    name: str, header: Sequence[str], uses: Sequence[str], body: Sequence[tuple[str, list[str]]]
) -> None:
    """Refuse rows that another column calls folds: no seed says that they share training data."""
    variants = [cells[uses.index("variant")] for _, cells in body]
    pairs = header[uses.index("seed")]
    is_counted = all(WHOLE.fullmatch(cells[uses.index("seed")]) for _, cells in body)
    if is_counted and not SEED.search(pairs) and {*header} >= CROSS_VALIDATE:
        raise InputError(
            f"{name}: fit_time and score_time are of cross_validate of scikit-learn, whose rows are"
            f" no independent trainings; call the column {printable(pairs)} fold if they are those"
            " of one cross-validation, or seed if each row is the mean of one"
        )
    for i, column in enumerate(header):
        trials = [(variant, cells[i]) for variant, (_, cells) in zip(variants, body, strict=True)]
        folds = dict.fromkeys(fold for _, fold in trials if fold)
        is_constant = len({*trials}) == len({*variants})
        if uses[i] in USES or is_constant or not all(map(_may_be_seed, folds)):
            continue
        match = _not_seeds(column, _varying(column, folds))
        is_pair = len({*trials}) == len(trials) and all(fold for _, fold in trials)
        if match and match["part"] and is_pair:
            raise InputError(
                f"{name}: by the column {printable(column)}, each row of a variant has random"
                " images of its own, so the rows are no independent trainings; keep the rows of one"
                " choice of images, or remove the column if it holds no such choice"
            )
        if match and match["fold"]:
            advice = "write the number of each fold into a column fold"
            if len(folds) < len(trials) or len({*variants}) == 1:  # not the names of runs
                _folds(name, column, {fold: seed for seed, fold in enumerate(folds)})
                advice = f"type --pairs {shlex.quote(column)}" if is_pair else ONE_REPETITION
            raise InputError(
                f"{name}: by the column {printable(column)}, the rows of a variant are folds of a"
                f" cross-validation; {advice}, or remove the column if it holds no folds"
            )


def _plan(
    name: str, rows: Sequence[Row], numbers: Mapping[str, int], choices: Choices
) -> Plan | None:
    plans = {plan for plan in (choices.plan, *(row.planned_seeds for row in rows)) if plan}
    if len(plans) > 1:
        known = " and ".join(map(str, sorted(plans)))
        raise ConfigError(f"planned_seeds, --plan: a plan is one number, not {known}")
    placed = {
        (row.planned_order, numbers[row.seed]) for row in rows if row.planned_order is not None
    }
    order = tuple(seed for _, seed in sorted(placed))
    if not len(placed) == len(dict(placed)) == len({*order}):
        raise InputError(f"{name}: planned_order: give each seed one place of its own")
    if placed and not plans:
        raise InputError(f"{name}: planned_order needs the column planned_seeds")
    return Plan(seeds=plans.pop(), order=order) if plans else None


def _refuse_fractions(column: str, scores: Mapping[str, Decimal]) -> None:
    largest = max(scores.values(), default=Decimal(1))
    if 0 < largest <= Decimal("0.01"):
        raise InputError(
            f"{printable(column)}: are its scores, which are at most {100 * largest:f}, in percent?"
            " Type --unit percent, or --unit fraction"
        )


def _scores(
    texts: Mapping[str, str], chosen: str | None, delimiter: str, *, is_share: bool, is_loss: bool
) -> tuple[dict[str, Decimal], str, int]:
    """Return the scores by place, their unit and their digits; shares become fractions of 1."""
    unclear = maybe_thousands([*texts.values()], delimiter)
    if unclear and not is_share and not chosen:
        raise InputError(
            f"has the score {unclear!r} a sign between thousands? Write it without, or"
            " type --unit none if all signs are decimal"
        )
    if delimiter != "," and not any("." in text for text in texts.values()):
        texts = {place: text.replace(",", ".") for place, text in texts.items()}
    if chosen != "fraction" and {text[-1:] for text in texts.values()} == {"%"}:
        texts = {place: text.rstrip("%").rstrip() for place, text in texts.items()}
        chosen = chosen or "percent"
    # A cell that is no number at all, such as a date, is named before one with a decimal comma.
    in_order = sorted(texts, key=lambda at: bool(NUMBER.fullmatch(texts[at].replace(",", "."))))
    for place, text in ((at, texts[at]) for at in in_order):
        if not NUMBER.fullmatch(text) or len(text) > 40 or abs(Decimal(text)) > 1e39:
            raise InputError(
                f"{place}: the score {shorten(printable(text), 40)!r} is no number with a decimal"
                " point; if the trial diverged or failed, say so in a column 'state', and"
                " finished in the other rows"
            )
    scores = {place: Decimal(text) for place, text in texts.items()}
    largest = max(map(abs, scores.values()), default=Decimal(1))
    unit = chosen or ("none" if not is_share else "percent" if largest > 1 else "fraction")
    for place, score in scores.items():
        is_unclear = unit == "percent" and not chosen and 0 < score <= 1
        if is_unclear or (unit != "none" and not 0 <= score <= (100 if unit == "percent" else 1)):
            raise InputError(
                f"{place}: is the score {score} {UNITS[unit]}, like the others? Correct it, or type"
                " --unit percent, --unit fraction or --unit none"
            )
    # An error in percent may be below 1, so only values below 0.01 may be fractions of 1.
    bound, times = (Decimal("0.01"), 20) if unit == "fraction" else (Decimal(1), 10)
    low, place = max(((x, p) for p, x in scores.items() if x < bound), default=(Decimal(0), ""))
    high = min((x for x in scores.values() if x > bound), default=Decimal(0))
    is_asked = not chosen and is_loss == (unit == "fraction")
    if is_asked and 0 < times * low <= high and largest <= 100:
        raise InputError(
            f"{place}: is the score {low} in the unit of the others, such as {high}, or a fraction"
            f" among percent? Correct it, or type --unit {unit}"
        )
    gap = max(scores.values(), default=Decimal(1)) - min(scores.values(), default=Decimal(0))
    if unit == "none" and (0 < largest < 0.001 or 0 < gap < 0.001):  # a table would round them away
        raise InputError("all scores are below 0.001, or that close; write them in a smaller unit")
    places = max([1, *(-int(score.as_tuple().exponent) for score in scores.values())])
    scores = {place: score.scaleb(-2 * (unit == "percent")) for place, score in scores.items()}
    return scores, unit, min(4, places + 1) if unit == "none" else 2


def table(
    results: Any, on_message: Callable[[str], object], choices: Mapping[str, Any]
) -> "ResultTable":
    """Return the table of a CSV file or a data frame: ``vitcli.table``."""
    from vitcli.api import ResultTable

    chosen = Choices.of(**choices)
    is_frame = hasattr(results, "to_csv")
    if not is_frame and not isinstance(results, str | os.PathLike):
        kind = type(results).__name__
        raise ConfigError(f"vitcli.table: {kind}: must be a CSV file or a data frame of pandas")
    what = "frame" if is_frame else repr(portable(str(results)))
    call = f"vitcli.table({', '.join([what, *(f'{k}={v!r}' for k, v in choices.items())])})"
    text = _frame_text(results, chosen) if is_frame else csv_text(Path(results))
    document, unused, _ = read_text(text, "frame" if is_frame else str(results), chosen, call)
    if unused:
        on_message(f"not used: {', '.join(unused)}")
    return ResultTable(document, source=None if is_frame else Path(results))


def _frame_text(frame: Any, choices: Choices) -> str:
    """Return a data frame as CSV, with its index where that has variants, seeds or folds."""
    wanted = {"variant", "seed", choices.variant, choices.seed} - {None}
    names = {*getattr(getattr(frame, "index", None), "names", ())} - {None}
    has_folds = any(_not_seeds(str(name), [str(name)]) for name in names)
    text: str = frame.to_csv(index=has_folds or not wanted.isdisjoint(names))
    return text
