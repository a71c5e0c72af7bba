"""`vitcli bench attention`: time and memory of every attention row against sequence length."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from vitcli.core.nn.attention import ATTENTIONS, Position, SelfAttention
from vitcli.core.nn.softmax import TokenShape
from vitcli.core.spec import ModelSpec
from vitcli.core.train.loop import autocast_to
from vitcli.runner.allocator import keep_freed_memory
from vitcli.runner.bench.clock import timed, turns
from vitcli.runner.data.arrays import available_memory
from vitcli.runner.device import hardware, pick_precision, precision_name
from vitcli.runner.errors import ConfigError
from vitcli.runner.kernels import choose_kernels
from vitcli.runner.resources import resource_errors

LENGTHS = (64, 128, 256, 512, 1024, 2048)
TOO_LONG = 2.0
"""Seconds for one pass; longer sequences of that row are left out."""
COPIES = 4
"""Matrices of weights that the plain kernel holds at once: scores, weights, their gradients."""
TAIL = 3
"""Slopes are fitted to so many of the longest sequences."""


@resource_errors()
def bench_attention(
    device: torch.device,
    *,
    precision: str,
    embed_dim: int,
    num_heads: int,
    batch_size: int,
    lengths: tuple[int, ...],
    rounds: int,
    seconds: float,
) -> dict[str, Any]:
    """Forward and backward passes of whole attention layers, projections included.

    A row ends where a pass takes longer than TOO_LONG, or does not fit into the memory.
    """
    if embed_dim % num_heads:
        raise ConfigError(f"--num-heads {num_heads} does not divide --embed-dim {embed_dim}")
    if device.type == "cpu":
        keep_freed_memory()
    autocast = pick_precision(precision, device)
    rows = []
    for attention in ATTENTIONS:
        for kernels in ("fused", "plain", "native"):
            found = list(
                _row(
                    attention,
                    kernels,
                    device,
                    autocast,
                    (embed_dim, num_heads, batch_size),
                    lengths,
                    rounds,
                    seconds,
                )
            )
            if found:
                rows.append(
                    {
                        "attention": attention,
                        "kernels": kernels,
                        "points": found,
                        "time_slope": slope([(p["tokens"], p["seconds"]) for p in found]),
                        "memory_slope": slope([(p["tokens"], p["kept_bytes"]) for p in found]),
                    }
                )
    return {
        "benchmark": "attention",
        "setting": (
            f"one layer on {device} ({hardware(device)}), {precision_name(autocast)}, embed_dim"
            f" {embed_dim}, {num_heads} heads, {batch_size} images"
        ),
        "rows": rows,
    }


def _row(
    attention: str,
    kernels: str,
    device: torch.device,
    autocast: torch.dtype | None,
    sizes: tuple[int, int, int],
    lengths: tuple[int, ...],
    rounds: int,
    seconds: float,
) -> Iterator[dict[str, Any]]:
    embed_dim, num_heads, batch_size = sizes
    for tokens in lengths:
        spec = ModelSpec().replace(attention=attention, embed_dim=embed_dim, num_heads=num_heads)
        shape = TokenShape(embed_dim=embed_dim, grid_size=(1, tokens), num_prefix_tokens=0)
        layer = SelfAttention(spec, shape, Position()).to(device)
        if kernels == "native":
            choose_kernels(layer, device, autocast)
            if type(layer) is SelfAttention:
                return
        else:
            layer.fused = kernels == "fused"
        matrices = COPIES * 4 * batch_size * num_heads * tokens**2
        if kernels == "plain" and not fits(matrices, device):
            return
        x = torch.randn(batch_size, tokens, embed_dim, device=device, requires_grad=True)

        def work(layer: SelfAttention = layer, x: Tensor = x) -> None:
            with autocast_to(device, autocast):
                out = layer(x)
            out.float().mean().backward()

        if timed(work, device) > TOO_LONG:
            return
        kept = kept_bytes(lambda layer=layer, x=x: layer(x), device, autocast)  # type: ignore[misc]
        found = turns({"pass": work}, device, rounds=rounds, seconds=seconds)["pass"]
        yield {"tokens": tokens, "seconds": found.median, "kept_bytes": kept}


def fits(count: int, device: torch.device) -> bool:
    """Whether so many bytes are free, as far as the system says so."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        return count <= torch.cuda.mem_get_info(device)[0]
    return count <= (available_memory() or count)


def kept_bytes(
    forward: Callable[[], Tensor], device: torch.device, autocast: torch.dtype | None
) -> int:
    """What autograd keeps of a forward pass for the backward pass."""
    seen: dict[int, int] = {}
    kept: list[Tensor] = []  # alive to the end, so that no storage is counted under a reused id

    def note(tensor: Tensor) -> Tensor:
        seen[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
        kept.append(tensor)
        return tensor

    with saved_tensors_hooks(note, lambda tensor: tensor), autocast_to(device, autocast):
        forward()
    return sum(seen.values())


def slope(points: list[tuple[int, float]]) -> float | None:
    """The exponent of a power law through the last points, by least squares of the logarithms."""
    tail = [(math.log(x), math.log(y)) for x, y in points[-TAIL:]]
    if len(tail) < 2:
        return None
    mean_x, mean_y = (sum(values) / len(tail) for values in zip(*tail, strict=True))
    over = sum((x - mean_x) * (y - mean_y) for x, y in tail)
    return over / sum((x - mean_x) ** 2 for x, _ in tail)
