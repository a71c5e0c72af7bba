"""`vitcli bench attention`: time and memory of every attention rule by sequence length.

Only the rule is measured, forward and backward, without the projections around it: queries, keys
and values (B, h, N, d) -> (B, h, N, d).
"""

import datetime
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter
from scipy import stats
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from vitcli.core.models.layers import make_part
from vitcli.core.nn.attention import TokenShape
from vitcli.core.spec import VitSpec
from vitcli.core.spec.slots import ATTENTIONS, UNSTATED
from vitcli.core.torch_use import autocast_to
from vitcli.plugins.bench.training import timed, turns
from vitcli.runner.errors import ConfigError
from vitcli.runner.figure_style import METADATA, MUTED, encode
from vitcli.runner.files import commit, make_output_folder, require_replaceable
from vitcli.runner.limits import available_memory
from vitcli.runner.machine import device as machine
from vitcli.runner.machine.resources import resource_errors

LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096)
MAX_SECONDS = 4.0
"""Maximum seconds of one pass. After a slower pass, longer sequences are skipped."""
NUM_MATRICES = 4
"""Number of N x N matrices that the plain kernel holds: scores, weights, their gradients."""
UNSTATED_PEAK = 8
"""Peak memory of a rule that does not state its growth, divided by what it keeps for backward."""
MIN_FITTED_TOKENS = 512
KERNELS = ("plain", "fused")


@dataclass(frozen=True, kw_only=True)
class Setting:
    device: torch.device
    precision: str
    embed_dim: int
    num_heads: int
    batch_size: int
    rounds: int
    seconds: float

    @property
    def head_dim(self) -> int:
        return self.embed_dim // self.num_heads

    @property
    def autocast(self) -> torch.dtype | None:
        return machine.pick_precision(self.precision, self.device)


@resource_errors()
def bench_attention(
    setting: Setting,
    lengths: tuple[int, ...],
    threads: int | None,
    on_message: Callable[[str], None],
) -> dict[str, Any]:
    """Measure forward and backward passes of every rule, with each of its kernels.

    A row ends when a pass takes longer than MAX_SECONDS or does not fit into memory.
    """
    device, heads, width = setting.device, setting.num_heads, setting.embed_dim
    if width % heads:
        raise ConfigError(f"--num-heads {heads} does not divide --embed-dim {width}")
    if device.type == "cpu":
        machine.keep_freed_memory()
    torch.set_num_threads(threads or torch.get_num_threads())
    precision = machine.name_precision(setting.precision, device)
    setting = replace(setting, precision=precision)
    measured = {}
    with machine.arithmetic(precision):
        for attention, row in ATTENTIONS.items():
            for kernels in KERNELS if row.has_kernels else KERNELS[:1]:
                on_message(f"measuring {attention}, {kernels}")
                points = _measure_points(attention, kernels, setting, lengths)
                measured[attention, kernels] = [*points]
    return {
        "benchmark": "attention",
        "date": datetime.date.today().isoformat(),
        "environment": machine.environment(device),
        "setting": (
            f"the rule alone on {device} ({machine.hardware(device)}), {precision},"
            f" {heads} x {setting.head_dim} features, batch {setting.batch_size}"
        ),
        "rows": [
            {
                "attention": attention,
                "kernels": kernels,
                "stated_time": ATTENTIONS[attention].time,
                "stated_memory": ATTENTIONS[attention].memory if kernels == "plain" else "N",
                "points": points,
                "time_exponent": fit_exponent([(p["tokens"], p["seconds"]) for p in points]),
                "memory_exponent": fit_exponent([(p["tokens"], p["kept_bytes"]) for p in points]),
            }
            for (attention, kernels), points in measured.items()
            if points
        ],
    }


def _measure_points(
    attention: str, kernels: str, setting: Setting, lengths: tuple[int, ...]
) -> Iterator[dict[str, Any]]:
    device, autocast, growth = setting.device, setting.autocast, ATTENTIONS[attention].memory
    largest = 0.0
    """Bytes for each N x N, of the lengths so far."""
    for tokens in lengths:
        if growth == "N^2" and kernels == "plain":
            largest = NUM_MATRICES * 4 * setting.batch_size * setting.num_heads
        if not fits(largest * tokens**2, device):
            return
        forward = _make_pass(attention, kernels == "fused", tokens, setting)

        def work(forward: Callable[[], Tensor] = forward) -> None:
            with autocast_to(device, autocast):
                out = forward()
            out.float().mean().backward()

        try:
            work()  # warm-up: the first pass allocates memory and loads libraries
            if timed(work, device) > MAX_SECONDS:
                return
            kept = kept_bytes(forward, device, autocast)
        except torch.OutOfMemoryError:
            return
        if growth == UNSTATED:
            largest = max(largest, UNSTATED_PEAK * kept / tokens**2)
        times = turns({"pass": work}, device, rounds=setting.rounds, seconds=setting.seconds)
        yield {"tokens": tokens, "seconds": median(times["pass"]), "kept_bytes": kept}


def _make_pass(attention: str, fused: bool, tokens: int, setting: Setting) -> Callable[[], Tensor]:
    width, heads = setting.embed_dim, setting.num_heads
    spec = VitSpec(attention=attention, embed_dim=width, num_heads=heads)
    height = next(side for side in range(math.isqrt(tokens), 0, -1) if tokens % side == 0)
    grid = (height, tokens // height)  # as square as possible
    shape = TokenShape(embed_dim=width, num_heads=heads, grid_size=grid, num_prefix_tokens=0)
    rule: nn.Module = make_part(spec, "attention", shape).to(setting.device)
    rule.fused = fused  # type: ignore[assignment]
    size = (setting.batch_size, setting.num_heads, tokens, setting.head_dim)
    dtype = setting.autocast or torch.float32
    q, k, v = (
        torch.randn(size, device=setting.device, dtype=dtype, requires_grad=True) for _ in range(3)
    )
    return lambda: rule(q, k, v)


def fits(count: float, device: torch.device) -> bool:
    """Return whether ``count`` bytes are free; True if the system does not report its memory."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        return count <= torch.cuda.mem_get_info(device)[0]
    return count <= (available_memory() or count)


def kept_bytes(
    forward: Callable[[], Tensor], device: torch.device, autocast: torch.dtype | None
) -> int:
    seen: dict[int, int] = {}
    kept: list[Tensor] = []  # keeps addresses unique: freed storage could be reused

    def note(tensor: Tensor) -> Tensor:
        seen[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
        kept.append(tensor)
        return tensor

    with saved_tensors_hooks(note, lambda tensor: tensor), autocast_to(device, autocast):
        forward()
    return sum(seen.values())


def fit_exponent(points: list[tuple[int, float]]) -> tuple[float, float] | None:
    """Return the exponent of a power law and half of its 95 % interval.

    The fit is least squares of the logarithms, for points with at least MIN_FITTED_TOKENS tokens.
    Returns None for fewer than three such points.
    """
    tail = [(math.log(x), math.log(y)) for x, y in points if x >= MIN_FITTED_TOKENS]
    if len(tail) < 3:
        return None
    fit = stats.linregress(*zip(*tail, strict=True))
    half = stats.t.ppf(0.975, len(tail) - 2) * fit.stderr
    return float(fit.slope), float(half)


RULE_COLOURS = (
    *("#222222", "#1f6fb2", "#2a8f5a", "#8250c4"),
    *("#b5541c", "#8a6d00", "#a3195b", "#5b6770"),
)
RULE_MARKERS = "oosD^vPX"
"""Colour and marker of an attention rule, in the order of the rows.

The colours are not those of ``PALETTE``, which would change published figures. The markers differ
too, for readers without colours."""

SOFTWARE = "vitcli bench attention"


def prepare_figure(path: Path) -> None:
    if path.suffix[1:] not in METADATA:
        raise ConfigError(f"-o {path}: name it .{', .'.join(METADATA)}")
    require_replaceable(path, "figure", SOFTWARE.encode())
    make_output_folder(path.parent)


def draw(result: dict[str, Any], path: Path) -> None:
    figure = partial(_draw_growth, result)
    commit(path, encode(figure, path.suffix[1:], software=SOFTWARE))


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
        place = [*dict.fromkeys(names)].index(row["attention"]) % len(RULE_MARKERS)
        colour, own = RULE_COLOURS[place], RULE_MARKERS[place]
        marker, line = ("s", "--") if row["kernels"] == "fused" else (own, "-")
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
