"""A figure of time and memory of every attention rule by sequence length, with logarithmic axes."""

from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

from vitcli.runner.errors import ConfigError
from vitcli.runner.figure_style import METADATA, MUTED, encode
from vitcli.runner.files import commit, require_folder

LINES = {
    ("softmax", "plain"): ("#222222", "o", "-"),
    ("softmax", "fused"): ("#222222", "s", "--"),
    ("softmax", "native"): ("#222222", "D", ":"),
    ("strided", "plain"): ("#b5541c", "^", "-"),
    ("local", "plain"): ("#8a6d00", "v", "-"),
    ("linformer", "plain"): ("#1f6fb2", "o", "-"),
    ("performer", "plain"): ("#2a8f5a", "s", "-"),
    ("linear", "plain"): ("#8250c4", "D", "-"),
}
"""Colour, marker and line of each row. Marker and line differ too, for readers without colours."""


def require_figure(path: Path) -> None:
    """Check the path of a figure before anything is measured.

    Raises:
        ConfigError: The suffix is not a figure format, or the folder does not exist.
    """
    if path.suffix[1:] not in METADATA:
        raise ConfigError(f"-o {path}: name it .{', .'.join(METADATA)}")
    require_folder(path, "-o")


def draw(result: dict[str, Any], path: Path) -> None:
    """Write the figure of a result of ``bench_attention``."""
    commit(path, encode(partial(draw_growth, result), path.suffix[1:]))


def draw_growth(result: dict[str, Any]) -> Figure:
    """Draw time (left) and memory (right), a line for each row, with exponents in the legend."""
    figure = Figure(figsize=(9.5, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    _draw_panel(left, result["rows"], "seconds", 1e3, "time_exponent")
    left.set_title("ms a pass, forward and backward")
    _draw_panel(right, result["rows"], "kept_bytes", 1e-6, "memory_exponent")
    right.set_title("MB kept for the backward pass")
    figure.suptitle(result["setting"], fontsize=8, color=MUTED)
    return figure


def _draw_panel(
    axes: Axes, rows: list[dict[str, Any]], key: str, unit: float, exponent: str
) -> None:
    for row in rows:
        colour, marker, line = LINES[row["attention"], row["kernels"]]
        name = row["attention"] + ("" if row["attention"] != "softmax" else f", {row['kernels']}")
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
