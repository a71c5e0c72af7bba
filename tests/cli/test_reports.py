"""Each command's report says the same in all forms, and has the shape of the schema."""

import csv
import html
import io
import json
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import vitcli
from tests.plugin_rows import of
from vitcli.cli import console
from vitcli.runner.report.report import Report, render

BENCH = "-s model.depth=1 -s model.embed_dim=16 -s model.num_heads=2 --rounds 2 --seconds 0"
SIZES = "--embed-dim 8 --num-heads 2 --batch-size 1 --lengths 8,16 --rounds 2 --seconds 0"
COMMANDS = (
    *("eval mapped", *of("clip", "eval captions", "eval captions --zero-shot")),
    *of("probe", "eval mapped --probe knn", "eval mapped --probe linear"),
    *of("review", "eval mapped --review"),
    *("predict mapped x.png", "predict mapped x.png y.png note.png --reject 0.5"),
    *("attn-map mapped x.png -o PLACE", "visualize mapped --what curves -o PLACE"),
    *("data ls", "data info imagefolder:pictures", "data rm imagefolder:no"),
    *of("data_check", "data check pictures"),
    *of("choose", "choose imagefolder:pictures --models cifar10-pocket -s data.folds=3"),
    *("experiments ls", "experiments validate tiny.yaml broken.yaml"),
    *("experiments cp tiny.yaml PLACE/c.yaml",),
    *("runs ls", "runs verify mapped", "experiments show quickstart --json", "doctor"),
    *of("page", "runs watch parts --json", "runs page -o PLACE/page.html"),
    *of("explain", "explain scale cifar10-pocket --json"),
    *of("exports", "export mapped -o PLACE/m.safetensors"),
    *of("exports", "import PLACE/m.safetensors tiny.yaml -o PLACE/i"),
    *of("bench", f"bench train {BENCH} -s train.batch_size=8 --trace -o PLACE/trace.json"),
    *of("bench", f"bench data {BENCH}", f"bench inference {BENCH}", f"bench attention {SIZES}"),
)
SCALES = {"%": 0.01, "ms": 1e-3, "s": 1, "min": 60, "h": 3600, "": 1}
SCALES |= {"kB": 1e3, "MB": 1e6, "GB": 1e9, "MB/s": 1e6, "TFLOP/s": 1e12}
NUMBER = re.compile(
    r"(-?\d[\d,]*(?:\.(\d+))?(?:e([+-]\d+))?)(?: (%|ms|s|min|h|[kMG]B(?:/s)?|TFLOP/s))?"
)

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "report.md"
SCHEMA = json.loads(PAGE.read_text().partition("```json\n")[2].partition("```")[0])


@pytest.fixture
def report_of(stage, tmp_path, monkeypatch):
    reports: list[Report] = []

    def spy(report: Report, form: str, width: int | None = None) -> str:
        reports.append(report)
        return render(report, form, width)

    monkeypatch.setattr(console, "render", spy)

    def type_command(command: str) -> Report:
        if command.startswith("import"):
            vitcli("export", "mapped", "-o", tmp_path / "m.safetensors")
        vitcli(*command.replace("PLACE", str(tmp_path)).split())
        return reports[-1]

    return type_command


def markdown_rows(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if re.match(r"\|(?! :?-+:? \|)", line)]
    return [[re.sub(r"\\(.)", r"\1", cell) for cell in line[2:-2].split(" | ")] for line in lines]


def check_cell(cell: str, value: Any) -> None:
    """Compare what people read with the value of JSON, at the digits that are shown."""
    if value is None or isinstance(value, str | list | dict):
        return
    if isinstance(value, bool):
        assert cell.startswith("yes" if value else "no")
        return
    (first, decimals, power, unit), *more = NUMBER.findall(cell)
    number, step = float(first.replace(",", "")), 10.0 ** (int(power or 0) - len(decimals))
    if unit in ("min", "h"):
        ((second, _, _, smaller), *_) = more
        number = number * SCALES[unit] + float(second) * SCALES[smaller]
        unit, step = "", SCALES[smaller]
    if power or (decimals and not unit):
        step = max(step, 1e-3 * abs(value))  # four digits
    assert abs(number * SCALES[unit] - value) <= 0.5001 * step * SCALES[unit], (cell, value)


def shown_rows(report: Report, found: dict[str, Any]) -> Iterator[list[Any]]:
    for fact in report.facts:
        if fact.shown:
            yield [None, None if fact.text is not None else found[fact.name]]
    for table in report.tables:
        if table.is_shown and table.rows:
            yield [None] * len(table.table().columns)
            for row in found[table.name][: table.most]:
                cells = [(field, row[field.name]) for field in table.fields if field.is_shown]
                yield [c for field, v in cells for c in (v if field.spread else [v])]


def check_shape(value: Any, schema: dict[str, Any]) -> None:
    """Check the keywords of JSON Schema that the schema of a report has."""
    kinds = {"object": dict, "array": list, "string": str}
    if "type" in schema:
        assert isinstance(value, kinds[schema["type"]])
    if isinstance(value, dict):
        assert {*schema.get("required", ())} <= value.keys()
        for name, item in value.items():
            others = schema.get("additionalProperties", {})
            check_shape(item, schema.get("properties", {}).get(name, others))
    for item in value if isinstance(value, list) else ():
        check_shape(item, schema.get("items", {}))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_form_of_a_report_says_the_same(report_of, command):
    report = report_of(command)
    found = json.loads(render(report, "json"))
    check_shape(found, SCHEMA)
    rows = [*shown_rows(report, found)]
    shown = markdown_rows(render(report, "md")) if rows else []
    for cells, values in zip(shown, rows, strict=True):
        for cell, value in zip(cells, values, strict=True):
            check_cell(cell, value)
    cells_of_page = re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", render(report, "html"))
    assert [html.unescape(cell) for cell in cells_of_page] == [*chain(*shown)]
    lines = [line for line in render(report, "latex").splitlines() if line.endswith(r" \\")]
    assert [line.count(" & ") for line in lines] == [len(cells) - 1 for cells in shown]
    text = render(report, "text")
    for fact in report.facts:
        assert not fact.shown or re.search(
            f"^{re.escape(fact.title)} +{re.escape(fact.shown)}", text, re.M
        )
    tables = [table.table() for table in report.tables if table.is_shown]
    assert all(cell in text for table in tables for row in table.rows for cell in row)
    header, *lines = csv.reader(io.StringIO(render(report, "csv"), newline=""))
    main = report.tables[0].name if report.tables else None
    names = [fact.name for fact in report.facts]
    wanted = found[main] if main else [{"name": name, "value": found[name]} for name in names]
    for line, row in zip(lines, wanted, strict=True):
        for cell, name in zip(line, header, strict=True):
            value = row[name]
            if isinstance(value, int | float | list | dict):
                assert json.loads(cell) == value
                assert "\\u" not in cell, "letters are readable"
            else:
                assert cell.removeprefix("'") == (value or "")
