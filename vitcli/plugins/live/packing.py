"""A Vision Transformer as data: the steps of its forward pass, and its weights.

The script of the page (templates/live) has one function for each kind of step. A layer is
packed only if a table below has its exact class, so a layer that the script does not know is
refused and never computed in another way.

Axes: C channels, H W pixels, N tokens (prefix first), D embed_dim, h num_heads, d = D / h.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vitcli.core.data.augment import scale_and_shift
from vitcli.core.models.vit import VisionTransformer
from vitcli.core.nn import attention
from vitcli.core.nn import block as branches
from vitcli.core.nn.ffn import Mlp, SwiGlu
from vitcli.core.nn.norm import TokenBatchNorm
from vitcli.core.nn.patch_embed import ConvPatches, ConvStem, ConvTokenizer, LinearPatches
from vitcli.core.nn.pool import ClsPool, MeanPool, SequencePool
from vitcli.core.nn.pos_embed import RelativeBias, Rope2d
from vitcli.core.ops.backend import CLAMP, Gelu, Linear
from vitcli.core.spec.slots import SLOTS

Step = dict[str, Any]
BatchNorm = nn.BatchNorm2d | TokenBatchNorm


class UnknownLayerError(Exception):
    """A layer that the script of the page does not know; the text names its slot and row."""


@dataclass
class Packer:
    """Packed steps of one model, and the tensors that they refer to."""

    model: VisionTransformer
    tensors: tuple[list[np.ndarray], list[np.ndarray]] = field(default_factory=lambda: ([], []))
    """In float16: those that lose nothing; in float32: all others. Each (n,), little-endian."""

    def add(self, tensor: Tensor) -> list[int]:
        """Store a tensor; return its list, 0 or 1, and its first place and number of values."""
        values = tensor.detach().float().cpu().numpy().astype("<f4").ravel()
        with np.errstate(over="ignore"):
            halves = values.astype("<f2")
        kind = int(not np.array_equal(halves.astype("<f4"), values))
        stored = self.tensors[kind]
        stored.append((halves, values)[kind])
        return [kind, sum(array.size for array in stored[:-1]), values.size]

    def steps(self, layer: nn.Module, slot: str) -> list[Step]:
        if type(layer) not in STEPS:
            raise self.unknown(slot)
        return STEPS[type(layer)](self, layer, slot)

    def unknown(self, slot: str) -> UnknownLayerError:
        row = f"{slot} {getattr(self.model.spec, slot)!r}" if slot in SLOTS else slot
        return UnknownLayerError(row)


def pack_model(
    model: VisionTransformer, mean: tuple[float, ...], std: tuple[float, ...]
) -> tuple[dict[str, Any], tuple[bytes, bytes]]:
    """Return the steps of a model's forward pass as plain data, and the weights they refer to.

    Weights that are exact in float16 come first, then the others in float32. A reference to them is
    [0 or 1, first place, number of values]. Mean and std of the data are on the scale 0 to 1.
    """
    packer = Packer(model)
    if type(model) is not VisionTransformer:
        raise packer.unknown(f"family {model.spec.family!r}")
    if model.norm_pre is not None:
        raise packer.unknown("pre_norm")
    if model.image_shape[0] not in (1, 3):
        raise packer.unknown(f"in_chans {model.image_shape[0]}")
    scale, shift = scale_and_shift(torch.tensor(mean), torch.tensor(std))
    prefix, positions = _embedding(model)
    packed = {
        "channels": model.image_shape[0],
        "size": model.image_shape[1:],
        "grid": model.grid_size,
        "width": model.spec.embed_dim,
        "scale": scale.flatten().tolist(),
        "shift": shift.flatten().tolist(),
        "embed": packer.steps(model.patch_embed, "patch_embed"),
        "prefix": None if prefix is None else packer.add(prefix),
        "positions": None if positions is None else packer.add(positions),
        "heads": model.spec.num_heads,
        "residual": model.spec.has_residual,
        "blocks": [
            [_branch(packer, name, branch) for name, branch in block.named_children()]
            for block in model.blocks
        ],
        "norm": packer.steps(model.norm, "norm"),
        "pool": _pool(packer, model.pool),
        "head": packer.steps(model.head, "head"),
    }
    halves, floats = (b"".join(map(np.ndarray.tobytes, part)) for part in packer.tensors)
    return packed, (halves, floats)


def _embedding(model: VisionTransformer) -> tuple[Tensor | None, Tensor | None]:
    parts: list[Tensor] = [part for part in (model.cls_token, model.reg_tokens) if part is not None]
    front = torch.cat(parts, dim=1) if parts else None
    if model.pos_embed is None:
        return front, None
    table = model.pos_embed()
    first = table.shape[1] - model.num_patches
    if front is not None and first:
        front = front + table[:, :first]
    return front, table[:, first:]


def _branch(packer: Packer, name: str, branch: nn.Module) -> Step:
    """Return a residual branch: post(x + gain * inner(pre(x))), or without x."""
    if type(branch) not in (branches.PreNormBranch, branches.PostNormBranch):
        raise packer.unknown("norm_position")
    assert isinstance(branch, branches.Branch)
    if branch.join not in (torch.add, branches.keep_branch):
        raise packer.unknown("residual")
    after = list(branch.after.children())
    gains = [part.gamma for part in after if type(part) is branches.LayerScale]
    if len(after) != len(gains) + sum(type(part) is branches.DropPath for part in after):
        raise packer.unknown("layer_scale_init")
    norm = packer.steps(branch.norm, "norm")
    is_pre = type(branch) is branches.PreNormBranch
    return {
        "pre": norm if is_pre else [],
        "inner": packer.steps(branch.inner, {"attn": "attention"}.get(name, name)),
        "gain": packer.add(gains[0]) if gains else None,
        "adds": branch.join is torch.add,
        "post": [] if is_pre else norm,
    }


def _pool(packer: Packer, pool: nn.Module) -> Step:
    if type(pool) not in (ClsPool, MeanPool, SequencePool):
        raise packer.unknown("pool")
    if isinstance(pool, SequencePool):
        return {"kind": "seq", "score": packer.steps(pool.score, "pool")}
    return {"kind": "cls" if isinstance(pool, ClsPool) else "mean"}


def _linear(packer: Packer, layer: nn.Linear, _: str) -> list[Step]:
    return [_linear_step(packer, layer.weight, layer.bias)]


def _linear_step(packer: Packer, weight: Tensor, bias: Tensor | None) -> Step:
    stored = None if bias is None else packer.add(bias)
    return {"step": "linear", "weight": packer.add(weight), "bias": stored}


def _norm(packer: Packer, layer: nn.LayerNorm | nn.RMSNorm, _: str) -> list[Step]:
    assert layer.eps is not None, "torch's default depends on the data type"
    step: Step = {"step": "rmsNorm", "epsilon": layer.eps, "weight": packer.add(layer.weight)}
    if isinstance(layer, nn.LayerNorm):
        step |= {"step": "layerNorm", "bias": packer.add(layer.bias)}
    return [step]


def _batch_norm(packer: Packer, layer: BatchNorm, _: str) -> list[Step]:
    assert layer.running_var is not None
    assert layer.running_mean is not None
    scale = layer.weight.double() / (layer.running_var.double() + layer.eps).sqrt()
    shift = layer.bias.double() - layer.running_mean.double() * scale
    return [{"step": "affine", "weight": packer.add(scale), "bias": packer.add(shift)}]


def _unfold(kernel: int, stride: int, padding: int) -> Step:
    return {"step": "unfold", "kernel": kernel, "stride": stride, "padding": padding}


def _side(sides: Any) -> int:
    if isinstance(sides, tuple):
        assert len(set(sides)) == 1, "the script knows squares only"
        return int(sides[0])
    return int(sides)


def _channels_last(weight: Tensor, channels: int, side: int) -> Tensor:
    return weight.unflatten(-1, (channels, side, side)).movedim(-3, -1).flatten(-3)


def _conv(packer: Packer, layer: nn.Conv2d, _: str) -> list[Step]:
    assert layer.groups == 1
    assert _side(layer.dilation) == 1
    side = _side(layer.kernel_size)
    weight = _channels_last(layer.weight.flatten(1), layer.in_channels, side)
    unfold = _unfold(side, _side(layer.stride), _side(layer.padding))
    return [unfold, _linear_step(packer, weight, layer.bias)]


def _linear_patches(packer: Packer, layer: LinearPatches, _: str) -> list[Step]:
    side = layer.patch_size
    channels = layer.proj.in_features // side**2
    steps, norm = [_unfold(side, side, 0)], layer.norm
    if isinstance(norm, nn.LayerNorm):
        weight, bias = (_channels_last(x, channels, side) for x in (norm.weight, norm.bias))
        sums = {"weight": packer.add(weight), "bias": packer.add(bias)}
        steps.append({"step": "layerNorm", "epsilon": norm.eps, **sums})
    weight = _channels_last(layer.proj.weight, channels, side)
    return [*steps, _linear_step(packer, weight, layer.proj.bias)]


def _max_pool(packer: Packer, layer: nn.MaxPool2d, _: str) -> list[Step]:
    sides = _side(layer.kernel_size), _side(layer.stride), _side(layer.padding)
    return [_unfold(*sides) | {"step": "maxPool"}]


def _attention(packer: Packer, layer: attention.SelfAttention, _: str) -> list[Step]:
    rule, position = layer.attend, layer.position
    if type(rule) is not attention.Softmax:
        raise packer.unknown("attention")
    if rule.masks_diagonal:
        raise packer.unknown("attn_mask_diagonal")
    if type(rule.scale) not in (
        attention.HeadDimScale,
        attention.EmbedDimScale,
        attention.LearnedScale,
    ):
        raise packer.unknown("attn_scale")
    if type(position) not in (attention.Position, Rope2d, RelativeBias):
        raise packer.unknown("pos_embed")
    scale = torch.as_tensor(rule.scale()).detach().flatten().expand(layer.num_heads)
    turn = isinstance(position, Rope2d) and [packer.add(position.cos), packer.add(position.sin)]
    table = position.relative_table if isinstance(position, RelativeBias) else None
    return [
        {
            "step": "attention",
            "qkv": packer.steps(layer.qkv, "attention"),
            "scale": packer.add(scale),
            "clamp": CLAMP if rule.clamp else None,
            "turn": turn or None,
            "offsets": None if table is None else packer.add(table),
            "proj": packer.steps(layer.proj, "attention"),
        }
    ]


def _swiglu(packer: Packer, layer: SwiGlu, slot: str) -> list[Step]:
    return [*packer.steps(layer.fc1, slot), {"step": "gate"}, *packer.steps(layer.fc2, slot)]


def _sequence(packer: Packer, layer: nn.Sequential, slot: str) -> list[Step]:
    return [step for part in layer for step in packer.steps(part, slot)]


def _named(name: str) -> Callable[[Packer, Any, str], list[Step]]:
    return lambda packer, layer, slot: [{"step": name}]


def _parts(*names: str) -> Callable[[Packer, Any, str], list[Step]]:
    """Return the function for a layer whose parts of these names follow each other."""
    return lambda packer, layer, slot: [
        step for name in names for step in packer.steps(getattr(layer, name), slot)
    ]


STEPS: dict[type[nn.Module], Callable[[Packer, Any, str], list[Step]]] = {
    Linear: _linear,
    nn.Linear: _linear,
    Gelu: _named("gelu"),
    nn.ReLU: _named("relu"),
    nn.LayerNorm: _norm,
    nn.RMSNorm: _norm,
    TokenBatchNorm: _batch_norm,
    nn.BatchNorm2d: _batch_norm,
    nn.Identity: _parts(),
    nn.Sequential: _sequence,
    nn.Conv2d: _conv,
    nn.MaxPool2d: _max_pool,
    LinearPatches: _linear_patches,
    ConvPatches: _parts("proj"),
    ConvStem: _parts("stem", "proj"),
    ConvTokenizer: _parts("stem"),
    attention.SelfAttention: _attention,
    Mlp: _parts("fc1", "act", "fc2"),
    SwiGlu: _swiglu,
}
