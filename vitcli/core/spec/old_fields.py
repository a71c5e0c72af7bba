"""What configurations of version 0.7.0 held for every family, and how they are read.

A complete configuration that 0.7.0 stored has the fields of all families, those that do not apply
at their defaults.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from vitcli.core.spec.families import DEFAULT_FAMILY, FAMILIES, ModelSpec
from vitcli.core.spec.rows import SpecOf

DEFAULTS: dict[str, Any] = {
    "patch_size": 4,
    "patch_embed": "linear",
    "patch_bias": True,
    "patch_pre_norm": False,
    "patch_post_norm": False,
    "stem_width": None,
    "embed_dim": 192,
    "depth": 6,
    "depths": None,
    "layout": "CCTT",
    "window_size": 4,
    "num_heads": 3,
    "pos_embed": "learned",
    "pos_embed_prefix": False,
    "reg_tokens": 0,
    "attention": "softmax",
    "linformer_rank": 32,
    "linformer_share": "heads",
    "performer_features": None,
    "performer_redraw": 1000,
    "attn_window": 3,
    "attn_scale": "head_dim",
    "attn_clamp": False,
    "qkv_bias": True,
    "attn_proj": True,
    "proj_bias": True,
    "ffn": "gelu",
    "mlp_ratio": 4.0,
    "mlp_dim": None,
    "norm": "layer_norm",
    "norm_eps": 1e-6,
    "norm_position": "pre",
    "final_norm": None,
    "residual": "add",
    "layer_scale_init": None,
    "drop_path": 0.0,
    "attn_drop": 0.0,
    "proj_drop": 0.0,
    "pos_drop": 0.0,
    "pool": "cls",
    "head": "linear",
    "init": "trunc_normal",
}
"""The fields of 0.7.0 that some family lacks today, at their defaults."""


def all_fields() -> Iterator[str]:
    """Every field that some family has."""
    for row in FAMILIES.values():
        yield from row.spec.model_fields


def without_foreign(spec: type[BaseModel], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Drop the fields of other families that are at the defaults of 0.7.0.

    Raises:
        ValueError: A field of another family has another value.
    """
    foreign = [name for name in fields if name not in spec.model_fields and name in all_fields()]
    family = spec.model_fields["family"].default
    for name in foreign:
        default = DEFAULTS.get(name)
        if fields[name] != default:
            what = "leave it out" + ("" if default is None else f", or at {default}")
            raise ValueError(f"family {family!r} has no {name}; {what}")
    return {name: value for name, value in fields.items() if name not in foreign}


FAMILY = SpecOf(FAMILIES, "family", DEFAULT_FAMILY, without_foreign)
"""Annotates the model of an experiment."""


def model_spec(**fields: Any) -> ModelSpec:
    """Return the spec of the family that ``family`` names, a Vision Transformer unless given.

    Raises:
        ValueError: The family is unknown, has no such field, or its fields do not fit.
    """
    spec = FAMILY.choose(fields)
    assert isinstance(spec, ModelSpec)
    return spec
