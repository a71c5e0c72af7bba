"""A figure of time and memory of every attention rule by sequence length, with logarithmic axes."""

from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

from vitcli.runner.errors import ConfigError
from vitcli.runner.figure_style import METADATA, MUTED, encode
from vitcli.runner.files import commit, make_output_folder

RULE_MARKS = (
    ("#222222", "o"),
    ("#1f6fb2", "o"),
    ("#2a8f5a", "s"),
    ("#8250c4", "D"),
    ("#b5541c", "^"),
    ("#8a6d00", "v"),
    ("#a3195b", "P"),
    ("#5b6770", "X"),
)
"""Colour and marker of an attention rule, in the order of the rows.

The colours are not those of ``PALETTE``, which would change published figures. The markers differ
too, for readers without colours."""
KERNEL_LINES = {"fused": ("s", "--"), "native": ("D", ":")}
"""Marker and line of the kernels other than the plain one."""


def prepare_figure(path: Path) -> None:
    if path.suffix[1:] not in METADATA:
        raise ConfigError(f"-o {path}: name it .{', .'.join(METADATA)}")
    make_output_folder(path.parent)


def draw(result: dict[str, Any], path: Path) -> None:
    commit(path, encode(partial(_draw_growth, result), path.suffix[1:]))


def _draw_growth(result: dict[str, Any]) -> Figure:
    figure = Figure(figsize=(9.5, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    _draw_panel(left, result["rows"], "seconds", 1e3, "time_exponent")
    left.set_title("ms per pass, forward and backward")
    _draw_panel(right, result["rows"], "kept_bytes", 1e-6, "memory_exponent")
    right.set_title("MB kept for the backward pass")
    figure.suptitle(result["setting"], fontsize=8, color=MUTED)
    return figure


def _draw_panel(
    axes: Axes, rows: list[dict[str, Any]], key: str, unit: float, exponent: str
) -> None:
    names = [row["attention"] for row in rows]
    for row in rows:
        place = [*dict.fromkeys(names)].index(row["attention"])
        colour, marker = RULE_MARKS[place % len(RULE_MARKS)]
        marker, line = KERNEL_LINES.get(row["kernels"], (marker, "-"))
        is_alone = names.count(row["attention"]) == 1
        name = row["attention"] + ("" if is_alone else f", {row['kernels']}")
        grows = f"  N^{row[exponent][0]:.2f}" if row[exponent] else ""
        axes.plot(
            [point["tokens"] for point in row["points"]],
            [unit * point[key] for point in row["points"]],
            color=colour,
            marker=marker,
            linestyle=line,
            markersize=4,
            linewidth=1.2,
            label=name + grows,
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(LogFormatter())
    ticks = sorted({point["tokens"] for row in rows for point in row["points"]})
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks], fontsize=8)
    axes.set_xlabel("tokens N")
    axes.grid(color="#e6e6e6", linewidth=0.5)
    axes.legend(fontsize=7, frameon=False)
