"""Tables of plain strings as text, Markdown, LaTeX and HTML."""

import html
import re
import textwrap
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from vitcli.runner.columns import lay_out, make_column, wrap
from vitcli.runner.text import printable

MINUS, PLUS_MINUS = "\u2212", "\u00b1"
TEXT_WIDTH = 120
"""Width of the caption and the notes, in characters. The columns may be wider."""
CELL_WIDTHS = {"l": 14, "r": 24}
"""Width of cells with words (l) and with numbers (r), in text. A row's first cell is not
wrapped."""


@dataclass(frozen=True)
class Column:
    """A column's header and alignment: l or r."""

    header: str
    align: str


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of plain strings; the first cell of a row is the row's header."""

    name: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]


def _one_line(text: str) -> str:
    """Return text on one line, without control characters."""
    return " ".join(printable(text, substitute=" ").split())


def _ascii(text: str) -> str:
    """Return text in ASCII: signs as - and +-, letters without accents, the rest as escapes."""
    return "".join(map(_fold, _signs(_one_line(text))))


def _signs(text: str) -> str:
    return text.replace(MINUS, "-").replace(PLUS_MINUS, "+-")


def _fold(character: str) -> str:
    parts = unicodedata.normalize("NFKD", character)
    letters = "".join(c for c in parts if not unicodedata.combining(c))
    return letters.encode("ascii", "backslashreplace").decode()


def to_text(table: Table, width: int | None = None) -> str:
    """Return aligned columns in ASCII; long cells take several lines.

    Args:
        table: The table.
        width: Characters of a line. Without it, the columns are as wide as they need.
    """
    columns = []
    for i, column in enumerate(table.columns):
        cells = [_ascii(row[i]) for row in table.rows]
        limit = CELL_WIDTHS[column.align] if i else 0
        right = column.align == "r"
        columns.append(make_column(_ascii(column.header), cells, right=right, limit=limit))
    blocks = lay_out(columns, width)
    rule = "-" * max(block.width for block in blocks)
    lines = [line for block in blocks for line in (rule, *block.head, rule, *block.body)]
    limit = min(width or TEXT_WIDTH, TEXT_WIDTH)
    notes = [line for note in table.notes for line in wrap(_ascii(note), limit, indent="  ")]
    return "\n".join([*wrap(_ascii(table.caption), limit), *lines, rule, *notes])


def to_markdown(table: Table) -> str:
    """Return a GitHub table, followed by the notes as a list."""
    rules = ("---:" if column.align == "r" else ":---" for column in table.columns)
    heads = (column.header for column in table.columns)
    lines = [
        "| " + " | ".join(cells) + " |"
        for cells in (
            [escape_markdown(head) for head in heads],
            rules,
            *([escape_markdown(cell) for cell in row] for row in table.rows),
        )
    ]
    notes = [f"- {escape_markdown(note)}" for note in table.notes]
    return "\n".join([f"**{escape_markdown(table.caption)}**", "", *lines, "", *notes])


def escape_markdown(text: str) -> str:
    """Return text on one line in which Markdown sees no markup."""
    text = _signs(_one_line(text))
    # Markdown sees no markup in an underscore inside a word, nor in brackets without an address
    # behind them. A backslash there would break addresses.
    return re.sub(r"[\\`*|<>~$&]|\](?=\()|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", r"\\\g<0>", text)


LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "%": r"\%",
    "&": r"\&",
    "#": r"\#",
    "$": r"\$",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    "|": r"\textbar{}",
    MINUS: "$-$",
    PLUS_MINUS: r"$\pm$",
}


def to_latex(table: Table) -> str:
    """Return a ``table`` environment for ``\\usepackage{booktabs,graphicx}``, with the notes below.

    A table that is wider than the page's lines is scaled down to their width.
    """
    label = re.sub(r"[^A-Za-z0-9]+", "-", _ascii(table.name)).strip("-")
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering\footnotesize\setlength{\tabcolsep}{3pt}",
            rf"\caption{{{_latex(table.caption)}}}",
            rf"\label{{tab:{label}}}",
            r"\sbox0{",
            rf"\begin{{tabular}}{{{''.join(column.align for column in table.columns)}}}",
            r"\toprule",
            " & ".join(map(_latex_header, table.columns)) + r" \\",
            r"\midrule",
            *map(_latex_row, table.rows),
            r"\bottomrule",
            r"\end{tabular}}",
            r"\ifdim\wd0>\linewidth\resizebox{\linewidth}{!}{\usebox0}\else\usebox0\fi",
            "",
            r"\begin{flushleft}",
            "\n\n".join(map(_latex, table.notes)),
            r"\end{flushleft}",
            r"\end{table}",
        ]
    )


def _latex_header(column: Column) -> str:
    """Return a header as stacked short lines, so that it is not wider than its column."""
    lines = textwrap.wrap(column.header, 10, break_long_words=False)
    stacked = "\\\\{}".join(map(_latex, lines))  # {} ends \\, which takes a bracket as argument
    return rf"\shortstack[{column.align}]{{{stacked}}}"


def _latex_row(cells: Sequence[str]) -> str:
    # LaTeX takes a star or bracket here as the argument of the row end above.
    row = " & ".join(map(_latex, cells)) + r" \\"
    return "{}" + row if row[0] in "*[" else row


def _latex(text: str) -> str:
    """Return text that prints unchanged in a plain LaTeX article; two hyphens stay two hyphens."""
    folded = (c if c in LATEX else _fold(c) for c in _one_line(text))
    escaped = "".join(LATEX.get(c, c) for part in folded for c in part)
    return escaped.replace("--", "-{}-").replace("--", "-{}-")


def to_html(table: Table) -> str:
    """Return a ``<table>``, followed by the notes as a list."""
    heads = "".join(f'<th scope="col">{_html(column.header)}</th>' for column in table.columns)
    return "\n".join(
        [
            '<table class="study">',
            f"<caption>{_html(table.caption)}</caption>",
            f"<thead>\n<tr>{heads}</tr>\n</thead>",
            "<tbody>",
            *(_html_row(row, table.columns) for row in table.rows),
            "</tbody>",
            "</table>",
            '<ol class="notes">',
            *(f"<li>{_html(note)}</li>" for note in table.notes),
            "</ol>",
        ]
    )


def _html_row(row: Sequence[str], columns: Sequence[Column]) -> str:
    cells = "".join(
        f'<td class="number">{_html(cell)}</td>'
        if column.align == "r"
        else f"<td>{_html(cell)}</td>"
        for cell, column in zip(row[1:], columns[1:], strict=True)
    )
    return f'<tr><th scope="row">{_html(row[0])}</th>{cells}</tr>'


def _html(text: str) -> str:
    escaped = html.escape(_one_line(text))
    return escaped.replace(MINUS, "&minus;").replace(PLUS_MINUS, "&plusmn;")
