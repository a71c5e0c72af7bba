"""Initial weights, one function per scheme; norms start at 1 and 0, biases at 0, everywhere.

Each tensor is drawn from a generator of its own (``Draws``, by the name of the parameter), so
models of one seed start equal wherever name and shape of a tensor are the same, unless they differ
in how it starts: by ``init``, or by a value that a layer starts with. What ``mimetic`` makes of qkv
depends on the number of heads.
"""

import math

import torch
from torch import Generator, Tensor, nn

from vitcli.core.nn.attention import SelfAttention
from vitcli.core.nn.pos_embed import Learned, sincos2d
from vitcli.core.randomness import Draws

STD = 0.02
MIMETIC_QK, MIMETIC_VO = (0.7, 0.7), (0.4, 0.4)
"""alpha (noise) and beta (identity) of the two products."""


def matrix(module: nn.Module) -> Tensor | None:
    """The weight of a linear map, (out, in).

    A convolution that cuts patches (kernel = stride) is one, and must start as one: otherwise an
    ablation of the patch embedding would compare initial weights.
    """
    if isinstance(module, nn.Linear):
        return module.weight.detach()
    if isinstance(module, nn.Conv2d) and module.kernel_size == module.stride:
        return module.weight.detach().flatten(1)
    return None


def zero_bias(module: nn.Module) -> None:
    bias = getattr(module, "bias", None)
    if isinstance(bias, nn.Parameter):
        nn.init.zeros_(bias)


def own_start(model: nn.Module, draws: Draws) -> None:
    """What parts start with unless a scheme says otherwise.

    Convolutions start as torch starts them, but with a bias of 0; modules with a method
    ``init_weights`` start as it says.
    """
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_uniform_(module.weight, a=5**0.5, generator=draws(f"{name}.weight"))
            zero_bias(module)
    for path, module in model.named_modules():
        if path and hasattr(module, "init_weights"):
            module.init_weights(lambda name, path=path: draws(f"{path}.{name}"))


def trunc_normal(model: nn.Module, draws: Draws) -> None:
    """Truncated normal, std 0.02, for linear maps and positions; tokens N(0, 0.02).

    As ViT's and timm's, but for the convolution that cuts patches, which timm leaves to torch.
    The 3x3 convolutions of a stem keep their own start.
    """
    for name, module in model.named_modules():
        if (weight := matrix(module)) is not None:
            nn.init.trunc_normal_(weight, std=STD, generator=draws(f"{name}.weight"))
            zero_bias(module)
        if isinstance(module, Learned):
            nn.init.trunc_normal_(module.table, std=STD, generator=draws(f"{name}.table"))
    init_tokens(model, draws)


def xavier_normal(model: nn.Module, draws: Draws) -> None:
    """Glorot and Bengio 2010: W ~ N(0, 2 / (n_in + n_out)) for linear layers and convolutions.

    The report's scheme. Its CLS ~ N(0, 0.02) is read as a standard deviation of 0.02. The fused qkv
    matrix is three D x D matrices and is filled as such.
    """
    fused = {module.qkv for module in model.modules() if isinstance(module, SelfAttention)}
    for name, module in model.named_modules():
        if isinstance(module, Learned):
            nn.init.normal_(module.table, std=STD, generator=draws(f"{name}.table"))
        if isinstance(module, nn.Linear | nn.Conv2d):
            weight = matrix(module)
            weight = module.weight.detach() if weight is None else weight
            generator = draws(f"{name}.weight")
            if isinstance(module, nn.Conv2d) and module.groups > 1:
                nn.init.normal_(weight, std=grouped_std(module), generator=generator)
            else:
                for part in weight.chunk(3 if module in fused else 1):
                    nn.init.xavier_normal_(part, generator=generator)
            zero_bias(module)
    init_tokens(model, draws)


def grouped_std(conv: nn.Conv2d) -> float:
    """sqrt(2 / (n_in + n_out)) of one group; torch's own function counts n_out over all of them."""
    field = math.prod(conv.kernel_size)
    return math.sqrt(2 * conv.groups / (field * (conv.in_channels + conv.out_channels)))


def mimetic(model: nn.Module, draws: Draws) -> None:
    """Attention that starts as trained attention ends up: q k^T like +I, v proj like -I.

    Trockman and Kolter 2023, https://arxiv.org/abs/2305.09828: W_q W_k^T is factored from
    alpha Z + beta I head by head, W_v W_proj from alpha Z - beta I, and learned positions start as
    2-D sines. The rest is ``trunc_normal``.
    """
    trunc_normal(model, draws)
    for name, module in model.named_modules():
        if isinstance(module, SelfAttention):
            noise = draws(f"{name}.qkv.weight"), draws(f"{name}.proj.weight")
            mimetic_attention(module, *noise)
    grid: tuple[int, int] = model.grid_size  # type: ignore[assignment]
    for module in model.modules():
        if isinstance(module, Learned) and module.table.shape[-1] % 4 == 0:
            patches = sincos2d(grid, module.table.shape[-1])
            module.table.data[:, -len(patches) :] = patches


@torch.no_grad()
def mimetic_attention(attn: SelfAttention, qk_noise: Generator, vo_noise: Generator) -> None:
    """Factor both products by singular values and fill qkv and proj with the factors."""
    dim = attn.qkv.in_features
    head_dim = dim // attn.num_heads
    q, k, v = attn.qkv.weight.chunk(3)  # each (D, D), rows are features of the heads
    alpha, beta = MIMETIC_QK
    for head in range(attn.num_heads):
        rows = slice(head * head_dim, (head + 1) * head_dim)
        noise = torch.randn(dim, dim, generator=qk_noise) / dim**0.5
        left, values, right = torch.linalg.svd(alpha * noise + beta * torch.eye(dim))
        root = values[:head_dim].sqrt()
        q[rows] = (left[:, :head_dim] * root).mT
        k[rows] = right[:head_dim] * root[:, None]
    alpha, beta = MIMETIC_VO
    noise = torch.randn(dim, dim, generator=vo_noise) / dim**0.5
    left, values, right = torch.linalg.svd(alpha * noise - beta * torch.eye(dim))
    v.copy_((left * values.sqrt()).mT)
    assert isinstance(attn.proj, nn.Linear)
    attn.proj.weight.copy_((values.sqrt()[:, None] * right).mT)


def init_tokens(model: nn.Module, draws: Draws) -> None:
    for name, parameter in model.named_parameters():
        if name in ("cls_token", "reg_tokens"):
            nn.init.normal_(parameter, std=STD, generator=draws(name))
