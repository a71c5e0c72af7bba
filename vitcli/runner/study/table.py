"""The table of a study: a pure function of its document, which always gives the same bytes."""

import json
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from vitcli.core.metric import Metric
from vitcli.plugin import load_target, missing_for
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.report.tables import DASH, Column, Table, to_csv, to_markdown, to_text
from vitcli.runner.run.folder import RESULT_STATES
from vitcli.runner.run.record import RunRecord
from vitcli.runner.study.design import crossed_design
from vitcli.runner.study.judgement import is_withheld
from vitcli.runner.study.looks import seeds_needed
from vitcli.runner.study.notes import has_effects, notes
from vitcli.runner.study.result import DOCUMENTS, StudyResult, VariantResult, sort_seeds
from vitcli.runner.study.significance import POWER
from vitcli.runner.study.statistics import RowStatistics, compare, num_tests
from vitcli.runner.text import (
    capitalize,
    interval,
    p_text,
    plain,
    quantity,
    rough_duration,
    setting_text,
    signed,
    tera,
)

P = "p (Holm)"
TRIAL_COLUMNS = (
    *("variant", "seed", "state", "planned_seeds", "planned_order", "comparisons", "predictions"),
)
FORMATS = ("text", "md", "latex", "csv", "json", "html")


@dataclass(frozen=True, kw_only=True)
class TableRow:
    row: VariantResult
    found: RowStatistics
    is_baseline: bool
    digits: int
    """Number of decimal places of scores and differences."""


FilledColumn = tuple[str, str, Callable[[TableRow], str]]
"""A column's header and alignment, and the function that returns its cell in a row."""


def render(
    doc: StudyResult,
    form: str,
    width: int | None = None,
    *,
    details: bool = False,
    caption: str | None = None,
) -> str:
    """Return the document as a table in one of ``FORMATS``, without a newline at the end.

    ``details`` adds a second table; csv and json always hold its numbers.
    """
    if form not in FORMATS:
        raise ConfigError(f"no form {form!r} of a table; choose one of {', '.join(FORMATS)}")
    if form == "csv":
        return to_csv(csv_rows(doc)).rstrip("\n")
    if form == "json":
        return to_json(doc)
    is_print = form == "latex" and doc.compares
    tables = [_for_print(doc, build(doc)) if is_print else build(doc)]
    if caption is not None:
        tables[0] = replace(tables[0], caption=caption)
    if doc.parts:
        tables.append(load_target(crossed_design().table)(doc))
    elif details and doc.compares:
        tables.append(build_details(doc))
    if form == "text":
        return "\n\n".join(to_text(table, width) for table in tables)
    if form == "md":
        return "\n\n".join(map(to_markdown, tables))
    from vitcli.runner.report.pages import to_html, to_latex  # the templates take a moment

    return "\n\n".join(map(to_html if form == "html" else to_latex, tables))


def build(doc: StudyResult) -> Table:
    """Return the table as words, with the characters U+2212 (minus) and U+00B1 (plus-minus)."""
    if (own := doc.own_table()) is not None:
        return own
    numbers = compare(doc)
    columns = _columns(doc, numbers)
    sentences = tuple(notes(doc, numbers).values())
    return _fill(doc, numbers, columns, name=doc.name, caption=caption_of(doc), notes=sentences)


def caption_of(doc: StudyResult) -> str:
    question = f"{doc.name}: {doc.question}" if doc.question else doc.name
    return f"{question} Hypothesis: {doc.hypothesis}" if doc.hypothesis else question


def mflop_text(row: VariantResult) -> str:
    return "" if row.forward_flops is None else f"{row.forward_flops / 1e6:,.1f}"


def _for_print(doc: StudyResult, table: Table) -> Table:
    numbers = compare(doc)
    rows = tuple(
        tuple(
            DASH if found.lacks_test and column.header == P else cell
            for column, cell in zip(table.columns, row, strict=True)
        )
        for row, found in zip(table.rows, numbers, strict=True)
    )
    lacking = [
        found.plan_needed or found.num_pairs + (found.seeds_missing or 0)
        for found in numbers
        if found.lacks_test
    ]
    sentences = []
    if any(row.score_sd is not None for row in numbers):
        sentences.append("Mean \u00b1 standard deviation over n seeds.")
    if any(row.ci_low is not None for row in numbers) and not doc.parts:
        sentences.append("Brackets: 95 % interval, paired by seed.")
    if lacking and not doc.parts:
        sentences.append(f"{DASH}: p needs {max(lacking)} planned seeds.")
    return replace(
        table,
        rows=rows,
        caption=capitalize(doc.question) or f"{capitalize(doc.headline.label)} by variant.",
        legend=" ".join(sentences),
        notes=((f"Hypothesis: {doc.hypothesis}",) if doc.hypothesis else ()) + table.notes,
    )


def build_details(doc: StudyResult) -> Table:
    """Return the second table: how certain each number of the first is, and why."""
    numbers, m = compare(doc), num_tests(doc)
    has_images = doc.headline.unit == "%" and any(found.with_images for found in numbers)
    pool_decides = any(found.lacks_test and found.pooled_low is not None for found in numbers)

    def joint(line: TableRow) -> str:
        low, high = line.found.joint_low, line.found.joint_high
        return "" if low == high else interval(low, high, line.digits)

    def pooled(line: TableRow) -> str:
        return interval(line.found.pooled_low, line.found.pooled_high, line.digits)

    def detectable(line: TableRow) -> str:
        return plain(line.found.detectable, line.digits)

    def p_equivalent(line: TableRow) -> str:
        return p_text(line.found.p_equivalent_holm)

    every: list[tuple[bool, FilledColumn]] = [
        (True, ("variant", "l", lambda line: line.row.variant)),
        (True, ("joint interval", "r", joint)),
        (pool_decides, ("pooled interval", "r", pooled)),
        (doc.folds is None, ("P(below baseline)", "r", _below)),
        (True, ("paired spread", "r", lambda line: plain(line.found.pairing, 2))),
        (True, ("detectable", "r", detectable)),
        (doc.margin is not None, ("p equivalent (Holm)", "r", p_equivalent)),
        (has_images, ("lost and won images", "r", _images)),
    ]
    columns = [column for is_shown, column in every if is_shown]
    meanings = {
        "joint interval": f"Joint interval: with alpha 0.05 / {m} (Bonferroni), so that the"
        " intervals of all rows hold together, at every look.",
        "pooled interval": "Pooled interval: the joint interval with the seed variance pooled over"
        " the rows, or with the row's own if that is larger. It decides, because a p-value needs a"
        f" plan of {seeds_needed(m)} seeds.",
        "P(below baseline)": "P(below baseline): share of the seeds with which the variant is"
        " lower; a tie counts one half.",
        "paired spread": "Paired spread: standard deviation of the paired differences over that of"
        " unpaired ones; pairing by seed helps if it is below 1.",
        "detectable": "Detectable: the difference that this many seeds find with probability"
        f" {POWER} at the level of the planned look.",
        "lost and won images": "Lost and won images: test images that every seed of the baseline"
        " gets right and every seed of the variant wrong, and the reverse.",
    }
    notes = tuple(meanings[header] for header, *_ in columns if header in meanings)
    caption = f"{doc.name}: how certain the differences are."
    return _fill(doc, numbers, columns, name=f"{doc.name}-details", caption=caption, notes=notes)


def _below(line: TableRow) -> str:
    found = line.found
    if found.below is None:
        return ""
    return f"{found.below:.2f} [{plain(found.below_low, 2)}, {plain(found.below_high, 2)}]"


def _images(line: TableRow) -> str:
    contrast = line.row.contrast
    return "" if contrast is None else f"{contrast.only_baseline:,} and {contrast.only_variant:,}"


def _fill(
    doc: StudyResult,
    numbers: Sequence[RowStatistics],
    columns: Sequence[FilledColumn],
    **fields: Any,
) -> Table:
    lines = [
        TableRow(row=row, found=found, is_baseline=i == 0, digits=doc.headline.digits)
        for i, (row, found) in enumerate(zip(doc.rows, numbers, strict=True))
    ]
    return Table(
        columns=tuple(Column(header, align) for header, align, _ in columns),
        rows=tuple(tuple(cell(line) for *_, cell in columns) for line in lines),
        **fields,
    )


def _columns(doc: StudyResult, numbers: Sequence[RowStatistics]) -> list[FilledColumn]:
    states = {trial.state for row in doc.rows for trial in row.trials}
    every: list[tuple[object, FilledColumn]] = [
        (True, ("variant", "l", lambda line: line.row.variant)),
        (not doc.origin, ("parameters", "r", lambda line: count_text(line.row.parameters))),
        (doc.compares_models, ("MFLOP per image", "r", lambda line: mflop_text(line.row))),
        (True, ("n", "r", lambda line: str(line.found.n))),
        (states - set(RESULT_STATES), ("not finished", "l", _unfinished)),
        (True, (doc.headline.title, "r", _score)),
        (not doc.parts, ("difference [95 % CI]", "r", _difference)),
        (
            not doc.parts,
            (P, "r", lambda line: missing_seeds(line.found) or p_text(line.found.p_holm)),
        ),
        (has_effects(doc, numbers), ("effect", "l", _effect)),
        ("diverged" in states, ("diverged", "r", _diverged)),
        (any(row.candidates for row in doc.rows), ("chosen setting", "l", _chosen)),
        (doc.compares_models, ("images/s", "r", _speed)),
        (doc.compares_compute, ("TFLOP per trial", "r", lambda line: tera(line.row.flops))),
        (
            not doc.origin,
            ("training time per trial", "r", lambda line: rough_duration(line.found.seconds_mean)),
        ),
    ]
    return [column for shown, column in every if shown] + _source_columns(doc)


def _source_columns(doc: StudyResult) -> list[FilledColumn]:
    source = doc.reference.rows if doc.reference else {}
    if not source or doc.parts:  # a factorial study compares no row with the baseline
        return []

    def given(name: str) -> list[FilledColumn]:
        def cell(line: TableRow) -> str:
            return count_text(getattr(source.get(line.row.variant), name, None))

        shown = any(getattr(row, name) for row in source.values())
        return [(f"source's {name}", "r", cell)] if shown else []

    title = doc.headline.title
    verdict = "verdict" if doc.same_setting else "direction only"
    return [
        (f"source's {title}", "r", lambda line: plain(line.found.source_score, line.digits)),
        ("source's drop", "r", lambda line: signed(line.found.source_drop, line.digits)),
        *given("parameters"),
        *given("hours"),
        (verdict, "l", lambda line: line.found.verdict or ""),
    ]


def score_text(score: float, headline: Metric) -> str:
    return f"{score:.{headline.digits}f} {headline.unit}".strip()


def count_text(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if value >= 1000 else f"{value:g}"


def _unfinished(line: TableRow) -> str:
    """Return the open trials, such as ``2 of 3 missing, 1 failed``."""
    states = Counter(trial.state for trial in line.row.trials)
    parts = [f"{n} {state}" for state, n in states.items() if state not in RESULT_STATES]
    return ", ".join(parts).replace(" ", f" of {len(line.row.trials)} ", 1)


def _diverged(line: TableRow) -> str:
    count = line.found.num_diverged
    return f"{count} of {len(line.row.trials)}" if count else "0"


def _score(line: TableRow) -> str:
    found = line.found
    if found.score_mean is None:
        return "diverged" if found.num_diverged and not found.num_unfinished else "no result yet"
    spread = "" if found.score_sd is None else f" \u00b1 {found.score_sd:.{line.digits}f}"
    return f"{found.score_mean:.{line.digits}f}{spread}"


def _difference(line: TableRow) -> str:
    found, digits = line.found, line.digits
    if line.is_baseline:
        return "baseline"
    if found.difference is None:
        return "no pair" if found.n else ""
    shown = [
        signed(found.difference, digits),
        "outside" * found.lies_outside,
        interval(found.ci_low, found.ci_high, digits),
    ]
    if not found.num_pairs == found.n > 1:
        shown.append(f"({quantity(found.num_pairs, 'pair')})")
    return " ".join(filter(None, shown))


def missing_seeds(found: RowStatistics) -> str:
    if found.seeds_missing:
        return quantity(found.seeds_missing, "more seed")
    return f"plan {quantity(found.plan_needed, 'seed')}" if found.plan_needed else ""


def _speed(line: TableRow) -> str:
    rates = [trial.images_per_second for trial in line.row.trials if trial.images_per_second]
    return f"{statistics.median(rates):,.0f}" if rates else ""


def _effect(line: TableRow) -> str:
    found = line.found
    if found.decided_at and found.decided_at < found.num_pairs and not is_withheld(found.effect):
        return f"{found.effect} (at {quantity(found.decided_at, 'seed')})"
    return found.effect or ""


def _chosen(line: TableRow) -> str:
    return "not chosen yet" if line.row.chosen is None else setting_text(line.row.chosen)


def csv_rows(doc: StudyResult) -> Iterator[Iterable[Any]]:
    """Yield a header and the numbers of each variant, which are rounded to 6 digits."""
    if not doc.compares:
        table = build(doc)
        yield [column.header for column in table.columns]
        yield from table.rows
        return
    for i, (row, found) in enumerate(zip(doc.rows, compare(doc), strict=True)):
        source = doc.reference.rows.get(row.variant) if doc.reference else None
        values = _numbers(found, doc.headline.name) | {
            "parameters": row.parameters,
            "forward_flops": row.forward_flops,
            "flops_per_trial": row.flops,
            "chosen": None if row.chosen is None else json.dumps(row.chosen),
            "source_parameters": source.parameters if source else None,
            "source_hours": source.hours if source else None,
        }
        if i == 0:
            yield values
        yield values.values()


def to_json(doc: StudyResult) -> str:
    compared = compare(doc) if doc.compares else ()
    numbers = [_numbers(found, doc.headline.name) for found in compared]
    value = doc.model_dump(mode="json") | {"statistics": numbers}
    return json.dumps(value, indent=2, allow_nan=False)


def _numbers(found: RowStatistics, headline: str) -> dict[str, Any]:
    rounded = {k: _short(v) if isinstance(v, float) else v for k, v in asdict(found).items()}
    named = {name.replace("score", headline): value for name, value in rounded.items()}
    return named if len(named) == len(rounded) else rounded  # a score may be called seconds


def _short(value: float) -> float:
    return round(value, 6) if abs(value) >= 0.001 else float(f"{value:.4g}")


def read_document(text: str) -> StudyResult:
    try:
        value = json.loads(text)
        if not isinstance(value, dict):
            raise ValueError("not a mapping")
        for field in value:
            if missing := missing_for(DOCUMENTS.field, field):
                raise ValueError(missing)
        kind = next((DOCUMENTS[field] for field in DOCUMENTS if field in value), StudyResult)
        return kind.model_validate({k: v for k, v in value.items() if k != "statistics"})
    except (ValueError, RecursionError) as error:
        problem = str(error).partition("\n")[0]
        raise InputError(f"not the document of a study: {problem}") from error


def trials_csv(doc: StudyResult, states: Mapping[str, RunRecord]) -> str:
    """Return the trials of a study as ``vitcli table`` reads them, with predictions of classes."""
    seeds = {trial.seed for row in doc.rows for trial in row.trials}
    order = sort_seeds(seeds, doc.plan)
    is_choice = bool(doc.plan and doc.plan.left_out(seeds))  # no plan holds for chosen seeds
    shown = states.values() if doc.headline.unit == "%" else ()
    files = {(record.config_hash, record.seed): record.stored_predictions for record in shown}
    score = f"test_{doc.headline.name}"
    rows = [
        (
            *(row.variant, trial.seed, trial.state),
            *((None, None) if is_choice else (doc.planned_seeds, order.index(trial.seed))),
            *(num_tests(doc), files.get((trial.config_hash, trial.seed)), trial.number(score)),
        )
        for row in doc.rows
        for trial in row.trials
    ]
    return to_csv([(*TRIAL_COLUMNS, score), *rows]).rstrip("\n")
