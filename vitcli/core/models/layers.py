"""Build the layers of a model from its spec. Each layer gets only its own arguments.

Axes: B batch, C channels, H W pixels, N tokens, D embed_dim.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from vitcli.core.nn.attention import Position, SelfAttention, Softmax, TokenShape
from vitcli.core.nn.block import Block, Branch, DropPath, LayerScale, PreNormBranch
from vitcli.core.nn.ffn import Mlp
from vitcli.core.nn.norm import EPS
from vitcli.core.spec import AttentionSpec, PatchSpec, TokenSpec
from vitcli.core.spec.rows import make, options_of
from vitcli.core.spec.slots import FFNS, POS_EMBEDS, RESIDUALS
from vitcli.plugin import load_target


def make_part(spec: TokenSpec, slot: str, *args: Any) -> Any:
    """Return what the row of a slot builds from the arguments and its options in the spec.

    An option that the family of the spec does not have keeps the default of the layer.
    """
    row = spec.row_of(slot)
    given = {key: field for key, field in row.options.items() if hasattr(spec, field)}
    options = {key: getattr(spec, field) for key, field in given.items()}
    part = make(row, *args, **options, **options_of(getattr(spec, slot, "")))
    if row.source:
        part.own_part = slot, type(part)
    return part


def build_patch_embed(spec: PatchSpec) -> nn.Sequential:
    """Return the patch embedding, with ``patch_post_norm`` if set: (B, C, H, W) -> (B, N, D)."""
    layers: list[nn.Module] = [
        make_part(spec, "patch_embed", spec.in_chans, spec.patch_size, spec.embed_dim)
    ]
    if spec.patch_post_norm:
        layers.append(nn.LayerNorm(spec.embed_dim))
    return nn.Sequential(*layers)


def build_table(spec: TokenSpec, shape: TokenShape) -> nn.Module | None:
    """Return the table of positions that is added to the embedded tokens, or None."""
    if not (isinstance(spec, AttentionSpec) and spec.pos_embed_prefix):
        shape = replace(shape, num_prefix_tokens=0)
    return make_part(spec, "pos_embed", shape) if POS_EMBEDS[spec.pos_embed].build else None


def build_position(spec: TokenSpec, shape: TokenShape) -> Position:
    """Return the part of the position embedding inside the attention of a block."""
    heads = POS_EMBEDS[spec.pos_embed].heads
    if not heads:
        return Position()
    position: Position = load_target(heads)(shape, **options_of(spec.pos_embed))
    if POS_EMBEDS[spec.pos_embed].source:
        position.own_part = "position", type(position)  # type: ignore[assignment]
    return position


def build_attention(
    spec: TokenSpec,
    shape: TokenShape,
    layer: Callable[..., SelfAttention] = SelfAttention,
    *parts: Any,
    **options: Any,
) -> SelfAttention:
    """Return a layer with the attention rule of the spec; ``parts`` and ``options`` are its own."""
    return layer(
        shape,
        make_part(spec, "attention", shape),
        *parts,
        qkv_bias=spec.qkv_bias,
        has_proj=spec.attn_proj,
        proj_bias=spec.proj_bias,
        dropout=spec.proj_drop,
        **options,
    )


def build_block(
    spec: TokenSpec, shape: TokenShape, drop_path: float, attention: SelfAttention | None = None
) -> Block:
    """Return a block of attention (global by default) and, unless ``ffn`` is ``none``, an FFN."""
    if attention is None:
        attention = build_attention(spec, shape, SelfAttention, build_position(spec, shape))
    inners: list[nn.Module] = [attention]
    if FFNS[spec.ffn].build:
        inners.append(make_part(spec, "ffn", shape))

    def branch(inner: nn.Module) -> Branch:
        dim = shape.embed_dim
        scale = [LayerScale(dim, spec.layer_scale_init)] if spec.layer_scale_init else []
        after = nn.Sequential(*scale, DropPath(drop_path))
        norm, join = make_part(spec, "norm", dim), load_target(RESIDUALS[spec.residual].build)
        built: Branch = make_part(spec, "norm_position", norm, inner, join, after)
        return built

    return Block(*map(branch, inners))


def plain_block(shape: TokenShape, hidden_dim: int, position: Position | None = None) -> Block:
    """Return a pre-norm block of softmax attention and a GELU network, without dropout."""
    inners = SelfAttention(shape, Softmax(shape), position), Mlp(shape, hidden_dim=hidden_dim)
    norms = [nn.LayerNorm(shape.embed_dim, EPS) for _ in inners]
    parts = zip(norms, inners, strict=True)
    return Block(*(PreNormBranch(norm, inner, torch.add, nn.Identity()) for norm, inner in parts))
