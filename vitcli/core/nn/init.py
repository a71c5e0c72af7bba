"""Initial weights: one function for each scheme.

In all schemes, norms start with weight 1 and bias 0, and all other biases start at 0. Each tensor
has its own random generator, which depends on the seed and the name of the parameter (``Draws``).
So two models with the same seed have equal initial values in every tensor with the same name, shape
and scheme. There are two exceptions: layers whose initial value is a setting, and qkv under
``mimetic``, which depends on the number of heads.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Generator, Tensor, nn

from vitcli.core.nn.attention import SelfAttention
from vitcli.core.nn.pos_embed import Learned, sincos2d
from vitcli.core.randomness import Draws

STD = 0.02
MIMETIC_QK, MIMETIC_VO = (0.7, 0.7), (0.4, 0.4)
"""Factors alpha (noise) and beta (identity) of the products W_q W_k^T and W_v W_proj."""


def linear_weight(module: nn.Module) -> Tensor | None:
    """Return the weight (out, in) of a linear map, or None for other modules.

    A convolution with kernel = stride is a linear map of patches. It gets the initial weights
    of a linear layer. Otherwise an ablation of the patch embedding would also compare initial
    weights.
    """
    if isinstance(module, nn.Linear):
        return module.weight.detach()
    if isinstance(module, nn.Conv2d) and module.kernel_size == module.stride:
        return module.weight.detach().flatten(1)
    return None


def init_bias(module: nn.Module) -> None:
    bias = getattr(module, "bias", None)
    if isinstance(bias, nn.Parameter):
        nn.init.zeros_(bias)


@contextmanager
def keeping_own(model: nn.Module) -> Iterator[None]:
    """Keep what own parts set in layers that a scheme fills: constants such as 0, or an identity.

    Other values may be torch's default draws, in whose place the scheme's come.
    """
    own = [part for part in model.modules() if hasattr(part, "own_part")]
    layers = [layer for part in own for layer in part.modules()]
    stated = [
        (parameter, parameter.detach().clone())
        for layer in layers
        if isinstance(layer, nn.Linear | nn.Conv2d)
        for parameter in layer.parameters(recurse=False)
        if is_stated(parameter)
    ]
    yield
    for parameter, values in stated:
        parameter.data.copy_(values)


def is_stated(values: Tensor) -> bool:
    """Return whether values are no random draws: at most two different ones, of more values."""
    most = min(2, values.numel() - 1)
    return len(values.flatten()[:99].unique()) <= most and len(values.unique()) <= most


def init_parts(model: nn.Module, draws: Draws) -> None:
    """Initialise convolutions, and modules that have a method ``init_weights``.

    A scheme may overwrite these values. Convolutions get torch's default weights and a bias of 0.
    """
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_uniform_(module.weight, a=5**0.5, generator=draws(f"{name}.weight"))
            init_bias(module)
    for path, module in model.named_modules():
        if path and hasattr(module, "init_weights"):
            module.init_weights(lambda name, path=path: draws(f"{path}.{name}"))


def trunc_normal(model: nn.Module, draws: Draws) -> None:
    """Fill linear maps and positions from a truncated normal with standard deviation 0.02.

    CLS and register tokens are drawn from a normal distribution with the same standard deviation.
    ViT and timm use this scheme. Deviation: a convolution that embeds patches is filled like a
    linear layer; timm leaves torch's default weights. The 3x3 convolutions of a stem keep the
    weights of ``init_parts``.
    """
    for name, module in model.named_modules():
        if (weight := linear_weight(module)) is not None:
            nn.init.trunc_normal_(weight, std=STD, generator=draws(f"{name}.weight"))
            init_bias(module)
        if isinstance(module, Learned):
            nn.init.trunc_normal_(module.table, std=STD, generator=draws(f"{name}.table"))
    init_tokens(model, draws)


def xavier_normal(model: nn.Module, draws: Draws) -> None:
    """Fill linear layers and convolutions from N(0, 2 / (n_in + n_out)) (Glorot and Bengio 2010).

    The course report uses this scheme. The report writes CLS ~ N(0, 0.02); here 0.02 is the
    standard deviation. The fused qkv matrix is filled as three D x D matrices.
    """
    fused = {module.qkv for module in model.modules() if isinstance(module, SelfAttention)}
    for name, module in model.named_modules():
        if isinstance(module, Learned):
            nn.init.normal_(module.table, std=STD, generator=draws(f"{name}.table"))
        if isinstance(module, nn.Linear | nn.Conv2d):
            weight = linear_weight(module)
            weight = module.weight.detach() if weight is None else weight
            generator = draws(f"{name}.weight")
            if isinstance(module, nn.Conv2d) and module.groups > 1:
                # torch would count n_out over all groups
                field = math.prod(module.kernel_size)
                ends = field * (module.in_channels + module.out_channels)
                std = math.sqrt(2 * module.groups / ends)
                nn.init.normal_(weight, std=std, generator=generator)
            else:
                for part in weight.chunk(3 if module in fused else 1):
                    nn.init.xavier_normal_(part, generator=generator)
            init_bias(module)
    init_tokens(model, draws)


def mimetic(model: nn.Module, draws: Draws) -> None:
    """Make W_q W_k^T similar to +I and W_v W_proj similar to -I, as in trained attention.

    Trockman and Kolter 2023, https://arxiv.org/abs/2305.09828. For each head, W_q and W_k are
    factors of alpha Z + beta I, where Z is noise. W_v and W_proj are factors of alpha Z - beta I.
    The learned positions of patches start as in ``sincos2d`` if D is divisible by 4. All other
    tensors start as in ``trunc_normal``.
    """
    trunc_normal(model, draws)
    for name, module in model.named_modules():
        if isinstance(module, SelfAttention):
            noise = draws(f"{name}.qkv.weight"), draws(f"{name}.proj.weight")
            mimetic_attention(module, *noise)
    for module in model.modules():
        if isinstance(module, Learned) and module.table.shape[-1] % 4 == 0:
            grid: tuple[int, int] = model.grid_size  # type: ignore[assignment]
            patches = sincos2d(grid, module.table.shape[-1])
            module.table.data[:, -len(patches) :] = patches


@torch.no_grad()
def mimetic_attention(attn: SelfAttention, qk_noise: Generator, vo_noise: Generator) -> None:
    """Fill qkv and proj by SVD with factors of the products W_q W_k^T and W_v W_proj."""
    dim = attn.qkv.in_features
    head_dim = dim // attn.num_heads
    q, k, _ = attn.qkv.weight.chunk(3)  # each (D, D), rows are features of the heads
    alpha, beta = MIMETIC_QK
    for head in range(attn.num_heads):
        rows = slice(head * head_dim, (head + 1) * head_dim)
        noise = torch.randn(dim, dim, generator=qk_noise) / dim**0.5
        left, values, right = torch.linalg.svd(alpha * noise + beta * torch.eye(dim))
        root = values[:head_dim].sqrt()
        q[rows] = (left[:, :head_dim] * root).mT
        k[rows] = right[:head_dim] * root[:, None]
    mimetic_values(attn, vo_noise)


@torch.no_grad()
def mimetic_values(attn: SelfAttention, draws: Generator) -> None:
    """Fill the values' part of qkv and proj with factors of W_v W_proj, similar to -I."""
    dim = attn.qkv.in_features
    v = attn.qkv.weight.chunk(3)[2]
    alpha, beta = MIMETIC_VO
    noise = torch.randn(dim, dim, generator=draws) / dim**0.5
    left, values, right = torch.linalg.svd(alpha * noise - beta * torch.eye(dim))
    v.copy_((left * values.sqrt()).mT)
    assert isinstance(attn.proj, nn.Linear)
    attn.proj.weight.copy_((values.sqrt()[:, None] * right).mT)


def init_tokens(model: nn.Module, draws: Draws) -> None:
    for name, parameter in model.named_parameters():
        if name in ("cls_token", "reg_tokens"):
            nn.init.normal_(parameter, std=STD, generator=draws(name))
