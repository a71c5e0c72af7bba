"""Tables of plain strings as text, Markdown, LaTeX and HTML."""

import html
import itertools
import re
import textwrap
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from vitcli.runner.text import printable

MINUS, PLUS_MINUS = "\u2212", "\u00b1"
NO_BREAK = "\0"
"""A space at which no line may break. No text of a table holds this character."""
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


def to_text(table: Table) -> str:
    """Return aligned columns in ASCII; long cells take several lines."""
    limits = [0, *(CELL_WIDTHS[column.align] for column in table.columns[1:])]
    rows = [list(map(_wrap, row, limits)) for row in table.rows]
    heads, widths = [], []
    for i, column in enumerate(table.columns):
        widest = max((len(line) for row in rows for line in row[i]), default=0)
        heads.append(_wrap(column.header, max(widest, *map(len, column.header.split()))))
        widths.append(max(widest, *map(len, heads[-1])))
    top = max(map(len, heads))
    heads = [[""] * (top - len(head)) + head for head in heads]
    rule = "-" * (sum(widths) + 2 * (len(widths) - 1))
    head, *body = [_aligned(row, widths, table.columns) for row in (heads, *rows)]
    notes = [line for note in table.notes for line in _wrap(note, TEXT_WIDTH, indent="  ")]
    lines = [line for row in body for line in row]
    return "\n".join([*_wrap(table.caption, TEXT_WIDTH), rule, *head, rule, *lines, rule, *notes])


def _wrap(text: str, width: int, indent: str = "") -> list[str]:
    """Return lines of at most ``width`` characters (0: no limit), without breaking intervals."""
    text = re.sub(r"\[[^\]]*\]", lambda found: found[0].replace(" ", NO_BREAK), _ascii(text))
    lines = textwrap.wrap(
        text,
        width or len(text) + 1,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(NO_BREAK, " ") for line in lines] or [""]


def _aligned(
    row: Sequence[Sequence[str]], widths: Sequence[int], columns: Sequence[Column]
) -> list[str]:
    """Return the lines of a row, whose cells have one line or more."""
    lines = []
    for cells in itertools.zip_longest(*row, fillvalue=""):
        parts = [
            cell.rjust(width) if column.align == "r" else cell.ljust(width)
            for cell, width, column in zip(cells, widths, columns, strict=True)
        ]
        lines.append("  ".join(parts).rstrip())
    return lines


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
