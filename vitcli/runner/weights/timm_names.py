"""Plain Vision Transformers as timm's ``VisionTransformer``: its arguments and its tensors.

Axes of tensors: C channels, P patch_size, N tokens, D embed_dim.
"""

from typing import Any

from torch import Tensor

from vitcli.core.models.vit import VisionTransformer
from vitcli.core.spec import ModelSpec, VitSpec
from vitcli.runner.weights.names import Naming
from vitcli.runner.weights.shapes import PATCHES
from vitcli.runner.weights.trained import TrainedModel

POSITIONS = "pos_embed.table"
ACTIVATIONS = {"gelu": "gelu", "relu": "relu"}
"""Row of ``FFNS`` -> timm's name of the activation."""
NORM_LAYERS = {"layer_norm": None, "rms_norm": "rmsnorm"}
"""Row of ``NORMS`` -> timm's name of the norm; None is timm's default."""
PLAIN: dict[str, tuple[Any, ...]] = {
    "patch_embed": ("linear", "conv"),
    "patch_pre_norm": (False,),
    "patch_post_norm": (False,),
    "pos_embed": ("learned", "none", "sincos1d", "sincos2d"),
    "attention": ("softmax",),
    "attn_scale": ("head_dim",),
    "attn_clamp": (False,),
    "attn_mask_diagonal": (False,),
    "attn_proj": (True,),
    "proj_bias": (True,),
    "ffn": tuple(ACTIVATIONS),
    "norm": tuple(NORM_LAYERS),
    "norm_eps": (1e-6,),
    "norm_position": ("pre",),
    "residual": ("add",),
    "pool": ("cls", "mean"),
    "head": ("linear",),
}
"""Field of a ViT -> the values that timm's ``VisionTransformer`` can have under a plain name."""


def not_plain(spec: ModelSpec) -> str | None:
    """Return the field that timm's ``VisionTransformer`` lacks, or None for a plain ViT."""
    if not isinstance(spec, VitSpec):
        return f"model.family={spec.family}"
    if spec.patch_bias == spec.pre_norm:  # timm's patches have a bias, except before a norm
        return f"model.patch_bias={spec.patch_bias} with model.pre_norm={spec.pre_norm}"
    values = {name: getattr(spec, name) for name in PLAIN}
    return next((f"model.{k}={v}" for k, v in values.items() if v not in PLAIN[k]), None)


def timm_arguments(model: TrainedModel) -> dict[str, Any]:
    """Return the arguments of timm's ``VisionTransformer`` for a plain ViT, as plain data."""
    spec = model.encoder.spec
    assert isinstance(spec, VitSpec)
    arguments = {
        "img_size": list(spec.img_size or ()),
        "patch_size": spec.patch_size,
        "in_chans": spec.in_chans,
        "num_classes": spec.num_classes if model.classifies else 0,
        "embed_dim": spec.embed_dim,
        "depth": spec.depth,
        "num_heads": spec.num_heads,
        "mlp_ratio": ratio(spec.hidden_dim, spec.embed_dim),
        "qkv_bias": spec.qkv_bias,
        "init_values": spec.layer_scale_init,
        "pos_embed": "none" if spec.pos_embed == "none" else "learn",
        "no_embed_class": not spec.pos_embed_prefix,
        "reg_tokens": spec.reg_tokens,
        "pre_norm": spec.pre_norm,
        "final_norm": spec.has_final_norm,
        "norm_layer": NORM_LAYERS[spec.norm],
        "act_layer": ACTIVATIONS[spec.ffn],
    }
    if spec.pool == "cls":
        return arguments | {"global_pool": "token"}
    return arguments | {"global_pool": "avg", "class_token": False, "fc_norm": False}


def ratio(hidden: int, dim: int) -> float:
    """Return a ratio of which ``int(dim * ratio)`` is the hidden width, as timm computes it."""
    exact = hidden / dim
    return exact if int(dim * exact) == hidden else (hidden + 0.5) / dim


def timm_state(model: TrainedModel) -> dict[str, Tensor]:
    """Return the tensors of a plain ViT with the names and shapes of timm.

    The patch embedding becomes a convolution (D, C, P, P). Constant positions become a table
    (1, N, D).
    """
    encoder, naming = model.encoder, Naming(is_timm=True)
    assert isinstance(encoder, VisionTransformer)
    state = model.state()
    size = encoder.spec.patch_size
    state[PATCHES] = state[PATCHES].reshape(encoder.spec.embed_dim, -1, size, size)
    if encoder.pos_embed is not None:
        state[POSITIONS] = encoder.pos_embed().detach()
    return {naming.to_file(name): tensor.contiguous() for name, tensor in state.items()}
