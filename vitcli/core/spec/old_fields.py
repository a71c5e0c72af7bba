"""Read complete configurations of version 0.7.0.

Version 0.7.0 stored the fields of all families for every model. Fields that did not apply to the
family had their default values.
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
    "attn_mask_diagonal": False,
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
    "pre_norm": False,  # since 0.9.0; a complete configuration names it, too
}
"""Default values of the fields that some families have and others do not.

They are fields of 0.7.0 and later fields of complete configurations.
"""


def family_fields() -> Iterator[str]:
    """Yield the fields of all families, with repetitions."""
    for row in FAMILIES.values():
        yield from row.spec_class.model_fields


def drop_foreign_fields(spec: type[BaseModel], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields without fields of other families that have their defaults.

    Raises:
        ValueError: A field of another family has another value.
    """
    foreign = [name for name in fields if name not in spec.model_fields and name in family_fields()]
    family = spec.model_fields["family"].default
    for name in foreign:
        default = DEFAULTS.get(name)
        if fields[name] != default:
            hint = "leave it out" + ("" if default is None else f" or set it to {default}")
            raise ValueError(f"family {family!r} has no {name}; {hint}")
    return {name: value for name, value in fields.items() if name not in foreign}


FAMILY = SpecOf(FAMILIES, "family", DEFAULT_FAMILY, drop_foreign_fields)
"""Annotation of the field that holds the model of an experiment."""


def model_spec(**fields: Any) -> ModelSpec:
    """Return the spec of the family ``family``, by default of a Vision Transformer.

    Raises:
        ValueError: The family is unknown, has no such field, or its fields contradict each other.
    """
    spec = FAMILY.choose(fields)
    assert isinstance(spec, ModelSpec)
    return spec
