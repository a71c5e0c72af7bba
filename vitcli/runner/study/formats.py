"""One table of plain strings as a terminal, Markdown, LaTeX or HTML shows it."""

import html
import itertools
import re
import textwrap
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

MINUS, PLUS_MINUS = "\u2212", "\u00b1"
HELD = "\0"
"""A space at which no line is broken; no text of a table holds this character."""
TEXT_WIDTH = 120
"""Of caption and notes; the columns are as wide as they must be."""
CELL_WIDTHS = {"l": 14, "r": 24}
"""Of words and of numbers in text; a row's head stays on one line."""


@dataclass(frozen=True)
class Column:
    """A column's head and its side: l or r."""

    header: str
    align: str


@dataclass(frozen=True, kw_only=True)
class Table:
    """Words only; the first cell of a row is its head."""

    name: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]


def _one_line(text: str) -> str:
    """Without line breaks and without what moves a terminal's cursor."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def _ascii(text: str) -> str:
    """Minus and plus-minus as - and +-, letters without accents, the rest as escapes."""
    return "".join(map(_fold, _signs(_one_line(text))))


def _signs(text: str) -> str:
    return text.replace(MINUS, "-").replace(PLUS_MINUS, "+-")


def _fold(character: str) -> str:
    parts = unicodedata.normalize("NFKD", character)
    letters = "".join(c for c in parts if not unicodedata.combining(c))
    return letters.encode("ascii", "backslashreplace").decode()


def to_text(table: Table) -> str:
    """Aligned columns, long cells over several lines; ASCII only."""
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
    """Lines of so many letters, or one for width 0; words and intervals stay whole."""
    text = re.sub(r"\[[^\]]*\]", lambda found: found[0].replace(" ", HELD), _ascii(text))
    lines = textwrap.wrap(
        text,
        width or len(text) + 1,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(HELD, " ") for line in lines] or [""]


def _aligned(
    row: Sequence[Sequence[str]], widths: Sequence[int], columns: Sequence[Column]
) -> list[str]:
    """The lines of one row, whose cells are of one line or more."""
    lines = []
    for cells in itertools.zip_longest(*row, fillvalue=""):
        parts = [
            cell.rjust(width) if column.align == "r" else cell.ljust(width)
            for cell, width, column in zip(cells, widths, columns, strict=True)
        ]
        lines.append("  ".join(parts).rstrip())
    return lines


def to_markdown(table: Table) -> str:
    """A GitHub table, then the notes as a list."""
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
    """Words as Markdown shows them: no markup, one line."""
    text = _signs(_one_line(text))
    # An underscore inside a word is no markup (a backslash would break an address), and neither
    # are brackets without an address behind them.
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
    """A ``table`` environment for ``\\usepackage{booktabs,graphicx}``, with the notes below.

    Where it is wider than the page's lines it is scaled down to them.
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
    """Short lines above each other: a header must not be wider than what stands below it."""
    lines = textwrap.wrap(column.header, 10, break_long_words=False)
    stacked = "\\\\{}".join(map(_latex, lines))  # {}: a bracket next would be \\'s argument
    return rf"\shortstack[{column.align}]{{{stacked}}}"


def _latex_row(cells: Sequence[str]) -> str:
    # After the end of the row above, a star or a bracket would be that command's argument.
    row = " & ".join(map(_latex, cells)) + r" \\"
    return "{}" + row if row[0] in "*[" else row


def _latex(text: str) -> str:
    """Any character as what a plain article prints; two hyphens stay two hyphens."""
    folded = (c if c in LATEX else _fold(c) for c in _one_line(text))
    escaped = "".join(LATEX.get(c, c) for part in folded for c in part)
    return escaped.replace("--", "-{}-").replace("--", "-{}-")


def to_html(table: Table) -> str:
    """A ``<table>`` with its notes as a list after it."""
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
