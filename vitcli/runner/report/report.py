"""What a command emits: facts and tables, and their forms, all made from the same values."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any

from vitcli.core.metric import Metric, metric_of
from vitcli.runner.report.tables import Table, make_table, plain, to_csv, to_markdown
from vitcli.runner.text import short_duration, size_text

SHARE = Metric(name="share", label="share", scale=100, unit="%", digits=1)
TERA = Metric(name="flops", label="FLOP/s", scale=1e-12, unit="TFLOP/s", digits=3)
UNITS: dict[str, Callable[[float], str]] = {
    "flops_per_second": TERA.text,
    "_per_second": "{:,.0f}".format,
    "seconds": short_duration,
    "bytes": size_text,
    "share": SHARE.text,
    "probability": SHARE.text,
}
"""How the end of a name says the unit of a number that is no row of METRICS."""


@dataclass(frozen=True)
class Fact:
    """A named value of a report."""

    name: str
    """Key in JSON and CSV."""
    value: Any
    _: KW_ONLY
    metric: Metric | None = None
    label: str = ""
    """Name in text; by default that of the metric, or the name with blanks."""
    text: str | None = None
    """The value for people, where its type and metric do not say it; "" leaves the fact out."""
    about: str = ""
    """Words behind the value, such as ``of 2,000 test images``."""

    @property
    def title(self) -> str:
        metric = metric_of(self.name)
        return self.label or (metric.label if metric else words_of(self.name))

    @property
    def shown(self) -> str:
        value = value_text(self.name, self.value, self.metric) if self.text is None else self.text
        return f"{value} {self.about}" if self.about else value


@dataclass(frozen=True)
class Field:
    """A column of a table."""

    name: str
    """Key in JSON and CSV."""
    header: str = ""
    """Header in text; by default the name with blanks."""
    _: KW_ONLY
    metric: Metric | None = None
    text: Callable[[Any], str] | None = None
    """How people read a value, where its type and metric do not say it."""
    of_row: Callable[[Mapping[str, Any]], str] | None = None
    """How people read a row in this column, where the value alone does not say it."""
    none: str = "-"
    """How people read a missing value."""
    spread: Sequence[str] | None = None
    """The headers of the columns in which people read the items of a list."""
    is_shown: bool = True
    """Whether people read the column."""

    def cells(self, row: Mapping[str, Any]) -> list[str]:
        if self.of_row:
            return [self.of_row(row)]
        value = row[self.name]
        return [self._cell(value)] if self.spread is None else [self._cell(item) for item in value]

    def _cell(self, value: Any) -> str:
        if value is None:
            return self.none
        return self.text(value) if self.text else value_text(self.name, value, self.metric)


@dataclass(frozen=True)
class DataTable:
    """A named table of a report; a row is a mapping from the names of the fields to values."""

    name: str
    columns: Sequence[Field | str]
    rows: Sequence[Mapping[str, Any]]
    _: KW_ONLY
    caption: str = ""
    is_shown: bool = True
    """Whether people read the table."""
    most: int | None = None
    """Largest number of rows that people read."""
    last: int | None = None
    """Number of rows at the end that people read; by default all."""
    is_mapping: bool = False
    """Whether JSON has an object of the values in the second column by those in the first."""

    @property
    def fields(self) -> list[Field]:
        return [Field(column) if isinstance(column, str) else column for column in self.columns]

    def table(self) -> Table:
        fields = [field for field in self.fields if field.is_shown]
        header, numeric = list[str](), list[int]()
        for column in fields:
            heads = column.spread or [column.header or words_of(column.name)]
            values = [row[column.name] for row in self.rows if row[column.name] is not None]
            if column.spread or (values and all(map(is_number, values))):
                numeric += range(len(header), len(header) + len(heads))
            header += heads
        shown = self.rows[-self.last :] if self.last else self.rows[: self.most]
        rows = [[cell for field in fields for cell in field.cells(row)] for row in shown]
        if len(shown) < len(self.rows) and not self.last:
            more = f"... and {len(self.rows) - len(shown):,} more"
            rows.append([more, *[""] * (len(header) - 1)])
        return make_table(header, rows, numeric, caption=self.caption, name=self.name)

    def document(self) -> Any:
        if not self.is_mapping:
            return [dict(row) for row in self.rows]
        key, value = (field.name for field in self.fields[:2])
        return {row[key]: row[value] for row in self.rows}


@dataclass(frozen=True, kw_only=True)
class Report:
    """The outcome of a command."""

    facts: Sequence[Fact] = ()
    tables: Sequence[DataTable] = ()
    """The first is the one of CSV."""
    notes: Sequence[str] = ()
    files: Sequence[Path] = ()
    next: Sequence[str] = ()


def words_of(name: str) -> str:
    """Return a name in words, without what its value says in text: its unit, or a number."""
    unit = re.compile(r"^num_|_(flops_per_second|bytes|seconds)$")
    return name if name.isupper() else unit.sub("", name).replace("_", " ")


def facts_of(**values: Any) -> list[Fact]:
    return [Fact(name, value) for name, value in values.items()]


def hidden(**values: Any) -> list[Fact]:
    """Return facts that only programs read."""
    return [Fact(name, value, text="") for name, value in values.items()]


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def value_text(name: str, value: Any, metric: Metric | None = None) -> str:
    """Return a value for people, with the unit that its metric or its name has."""
    if value is None or (isinstance(value, list | tuple) and not value):
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {value_text(key, item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(value_text(name, item, metric) for item in value)
    if not isinstance(value, int | float) or abs(value) > 1e300:
        return str(value)
    if metric := metric or metric_of(name):
        return metric.text(value)
    for ending, text in UNITS.items():
        if name.endswith(ending):
            return text(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def document(report: Report) -> dict[str, Any]:
    """Return the JSON document of a report; docs/reference/report.md has its schema."""
    values: dict[str, Any] = {}
    parts = [
        *((fact.name, fact.value) for fact in report.facts),
        *((table.name, table.document()) for table in report.tables),
        *(("notes", [*report.notes]), ("files", [*map(str, report.files)])),
        ("next", [*report.next]),
    ]
    for name, value in parts:
        assert name not in values, f"a report names {name!r} twice"
        values[name] = value
    return values


def csv_rows(report: Report) -> Iterator[Sequence[Any]]:
    """Yield a header and the values of the first table, or else those of the facts."""
    if not report.tables:
        yield "name", "value"
        yield from ((fact.name, cell_value(fact.value)) for fact in report.facts)
        return
    table = report.tables[0]
    yield [field.name for field in table.fields]
    yield from ([cell_value(row[field.name]) for field in table.fields] for row in table.rows)


def cell_value(value: Any) -> Any:
    """Return a value as a cell of CSV: a list, an object or a truth value is JSON."""
    if not isinstance(value, bool | Mapping | list | tuple):
        return value
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if text.isprintable() else json.dumps(value, default=str)


def render(report: Report, form: str, width: int | None = None) -> str:
    if form == "json":
        return json.dumps(document(report), indent=2, allow_nan=False, default=str)
    if form == "csv":
        return to_csv(csv_rows(report)).rstrip("\n")
    facts = [(fact.title, shown) for fact in report.facts if (shown := fact.shown)]
    tables = [table.table() for table in report.tables if table.is_shown and table.rows]
    notes = "\n".join(report.notes)
    if form == "text":
        label = max((len(title) for title, _ in facts), default=0)
        lines = "\n".join(f"{title:<{label}}  {value}" for title, value in facts)
        parts = [lines, *(plain(table, width) for table in tables), notes]
        return "\n\n".join(filter(None, parts))
    from vitcli.runner.report.pages import to_html, to_latex  # the templates take a moment

    to_form = {"md": to_markdown, "latex": to_latex, "html": to_html}[form]
    if facts:
        tables.insert(0, make_table(facts[0], facts[1:]))
    if not tables:
        return notes
    tables[-1] = replace(tables[-1], notes=tuple(report.notes))
    return "\n\n".join(map(to_form, tables))
