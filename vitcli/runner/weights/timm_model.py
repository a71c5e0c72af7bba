"""Vision Transformers of timm, and the fields of vitcli that describe them.

Models are built on the device ``meta``: they have shapes and no weights.
"""

from typing import Any

import torch
from torch import nn

from vitcli.runner.errors import InputError
from vitcli.runner.experiment.family import PREFIX, timm_config

ACTIVATIONS: dict[type[nn.Module], str] = {nn.GELU: "gelu", nn.ReLU: "relu"}


def build_timm(name: str, **options: Any) -> Any:
    """Return timm's model of a name on the device ``meta``.

    Args:
        name: A name of timm, such as ``deit_tiny_patch16_224``, also with a tag after a dot.
    """
    timm_config(name)
    import timm

    with torch.device("meta"):
        model = timm.create_model(name)
        kind = type(model)
        if kind is timm.models.VisionTransformer and options:
            model = timm.create_model(name, **options)
    if kind is not timm.models.VisionTransformer:
        raise InputError(
            f"{PREFIX}{name} is a {kind.__name__} of timm, and no family of vitcli; train it with"
            f" -s model.family=timm -s model.name={name}"
        )
    return model


def is_plain(name: str) -> bool:
    """Return whether vitcli's own ViT can be the model of timm of a name."""
    try:
        return bool(vit_fields(build_timm(name), name))
    except InputError:
        return False


def vit_fields(model: Any, name: str) -> dict[str, Any]:
    """Return the fields of ``model`` in an experiment that describe a model of timm."""
    if not len(model.blocks):
        raise InputError(f"{PREFIX}{name}: depth=0 has no blocks")
    block = model.blocks[0]
    norm = {"norm": "rms_norm"} if "rms" in type(block.norm1).__name__.lower() else {}
    fields = {
        "patch_embed": "conv",
        "patch_size": model.patch_embed.patch_size[0],
        "patch_bias": model.patch_embed.proj.bias is not None,
        "img_size": tuple(model.patch_embed.img_size),
        "in_chans": model.patch_embed.proj.in_channels,
        "embed_dim": model.embed_dim,
        "depth": len(model.blocks),
        "num_heads": block.attn.num_heads,
        "qkv_bias": block.attn.qkv.bias is not None,
        "proj_bias": block.attn.proj.bias is not None,
        "mlp_dim": block.mlp.fc2.in_features,
        "ffn": _ffn(block.mlp, name),
        "norm_eps": block.norm1.eps,
        "layer_scale_init": 1.0 if hasattr(block.ls1, "gamma") else None,
        "pos_embed": "none" if model.pos_embed is None else "learned",
        "pos_embed_prefix": model.pos_embed is not None and not model.no_embed_class,
        "reg_tokens": model.num_reg_tokens,
        "pool": _pool(model, name),
        "pre_norm": not isinstance(model.norm_pre, nn.Identity),
        "final_norm": not isinstance(model.norm, nn.Identity),
    }
    return fields | norm


def _ffn(mlp: nn.Module, name: str) -> str:
    kind = type(mlp.act)
    if type(mlp).__name__ == "GluMlp" and kind is nn.SiLU and not mlp.gate_last:
        return "swiglu"
    exact = getattr(mlp.act, "approximate", "none") == "none"
    if type(mlp).__name__ != "Mlp" or kind not in ACTIVATIONS or not exact:
        raise InputError(
            f"{PREFIX}{name}: vitcli has no {type(mlp).__name__} with act_layer={kind.__name__}"
        )
    return ACTIVATIONS[kind]


def _pool(model: Any, name: str) -> str:
    if model.global_pool == "token" and model.cls_token is not None:
        return "cls"
    has_fc_norm = not isinstance(model.fc_norm, nn.Identity)
    if model.global_pool == "avg" and model.cls_token is None and not has_fc_norm:
        return "mean"
    also = " with fc_norm" if has_fc_norm else ""
    also += " with a class token" if model.cls_token is not None else ""
    raise InputError(f"{PREFIX}{name}: vitcli has no global_pool={model.global_pool!r}{also}")
