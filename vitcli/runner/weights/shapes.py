"""The fields of a ViT that the shapes of its tensors tell."""

import shlex
from collections.abc import Collection, Mapping
from math import isqrt
from typing import Any

from vitcli.core.spec import ModelSpec, VitSpec
from vitcli.runner.experiment.yaml_text import format_value

PATCHES = "patch_embed.0.proj.weight"
PATCH_BIAS = "patch_embed.0.proj.bias"
ATTENTION = "blocks.0.attn.inner"
Shapes = Mapping[str, tuple[int, ...]]
"""Name of a tensor in vitcli -> its shape."""


def describe_settings(shapes: Shapes, spec: ModelSpec, timm_file: str = "") -> str:
    """Return the second line of an error: what to change so that the model fits the tensors.

    The text is empty if the shapes do not tell. No setting helps if the number of classes differs,
    or if there is no head. Then the text suggests a new head, which weights of timm can get.

    Args:
        shapes: The shapes of the tensors.
        timm_file: The file, if its names are those of timm.
    """
    if not isinstance(spec, VitSpec) or not has_vit_attention(shapes):
        return ""
    classes = _size(shapes, "head.weight", 0)
    if classes != spec.num_classes:
        has = f"{classes} classes" if classes else "no head"
        numbers = f"\nthe file has {has}, the data set has {spec.num_classes}"
        numbers += "" if classes else " classes"
        weights = f"--weights {shlex.quote(timm_file)}"
        retry = f"vitcli import timm:NAME {weights} EXPERIMENT --name NAME"
        return (
            f"{numbers}; if timm has this model, make a new head: {retry}" if timm_file else numbers
        )
    fields = model_fields(shapes, spec) | position_fields(shapes, spec)
    parts = []
    if fields:
        words = " ".join(f"-s {name}={format_value(value)}" for name, value in fields.items())
        parts.append(f"to fit the file, add: {words}")
    if "model.embed_dim" in fields:
        parts.append("set model.num_heads too, which a weights file does not hold")
    return "\n" + "; ".join(parts) if parts else ""


def has_vit_attention(names: Collection[str]) -> bool:
    return f"{ATTENTION}.qkv.weight" in names


def model_fields(shapes: Shapes, spec: VitSpec) -> dict[str, Any]:
    """Return the fields of the model that differ from the file, with their values in the file."""
    dim = _size(shapes, PATCHES, 0) or spec.embed_dim
    hidden = _size(shapes, "blocks.0.ffn.inner.fc2.weight", 1)
    has_scale = "blocks.0.attn.after.0.gamma" in shapes
    scale = spec.layer_scale_init if spec.layer_scale_init and has_scale else 1.0
    told = {
        "patch_size": (_size(shapes, PATCHES, 2), spec.patch_size),
        "embed_dim": (dim, spec.embed_dim),
        "depth": (_num_blocks(shapes), spec.depth),
        "mlp_dim": (hidden, spec.mlp_dim or int(dim * spec.mlp_ratio)),
        "qkv_bias": (f"{ATTENTION}.qkv.bias" in shapes, spec.qkv_bias),
        "proj_bias": (f"{ATTENTION}.proj.bias" in shapes, spec.proj_bias),
        "layer_scale_init": (scale if has_scale else "null", spec.layer_scale_init or "null"),
        "final_norm": ("norm.weight" in shapes, spec.has_final_norm),
        "pre_norm": ("norm_pre.weight" in shapes, spec.pre_norm),
        "patch_bias": (PATCH_BIAS in shapes if PATCHES in shapes else None, spec.patch_bias),
        "reg_tokens": (_size(shapes, "reg_tokens", 1) or 0, spec.reg_tokens),
        "pool": (_pool(shapes), spec.pool),
    }
    return {
        f"model.{name}": theirs
        for name, (theirs, ours) in told.items()
        if theirs is not None and theirs != ours
    }


def position_fields(shapes: Shapes, spec: VitSpec) -> dict[str, Any]:
    """Return the fields that the length of the learned positions tells: (1, N, D).

    N is the number of patches, or of patches and prefix tokens (CLS and registers).
    """
    length = _size(shapes, "pos_embed.table", 1)
    if length is None:
        return {}
    fields: dict[str, Any] = {} if spec.pos_embed == "learned" else {"model.pos_embed": "learned"}
    patch_size = _size(shapes, PATCHES, 2) or spec.patch_size
    height, width = spec.img_size or (0, 0)
    patches = (height // patch_size) * (width // patch_size)
    prefix = (_size(shapes, "cls_token", 1) or 0) + (_size(shapes, "reg_tokens", 1) or 0)
    if length not in (patches, patches + prefix):  # the file takes images of another size
        side = _root(length - prefix) or _root(length)
        if side is None:
            return fields
        fields["data.resize"] = side * patch_size
        patches = side**2
    has_prefix = length != patches
    if prefix and has_prefix != spec.pos_embed_prefix:
        fields["model.pos_embed_prefix"] = has_prefix
    return fields


def _pool(shapes: Shapes) -> str:
    if "cls_token" in shapes:
        return "cls"
    return "seq" if "pool.score.weight" in shapes else "mean"


def _num_blocks(shapes: Shapes) -> int:
    return len({name.split(".")[1] for name in shapes if name.startswith("blocks.")})


def _root(number: int) -> int | None:
    """Return the square root of a positive square number, and None for other numbers."""
    root = isqrt(max(number, 0))
    return root if root > 0 and root**2 == number else None


def _size(shapes: Shapes, name: str, axis: int) -> int | None:
    """Return the size of a tensor along an axis; None if there is none."""
    shape = shapes.get(name, ())
    return shape[axis] if len(shape) > axis else None
