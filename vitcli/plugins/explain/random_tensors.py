"""Numbers of attention and norms on random tensors with fixed seeds.

Axes: N tokens, d width of a head, B batch.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from vitcli.core.randomness import keyed_generator


def normal(name: str, *shape: int) -> Tensor:
    """Return standard normal numbers in float64 that depend on the name alone."""
    return torch.randn(shape, generator=keyed_generator("claims", name), dtype=torch.float64)


def score_variance(width: int, variance: float = 1.0) -> tuple[float, float]:
    """Return the variance of scores before and after the division by sqrt(d).

    Queries and keys are independent and normal with this variance.
    """
    queries, keys = normal(f"scores {width}", 2, 20_000, width) * variance**0.5
    scores = (queries * keys).sum(-1)
    return scores.var().item(), (scores / width**0.5).var().item()


def attend(tokens: Tensor, projections: Tensor) -> Tensor:
    """Return the output of self-attention: (N, d) and (3, d, d) -> (N, d)."""
    query, key, value = tokens @ projections
    weights = (query @ key.mT / tokens.shape[-1] ** 0.5).softmax(-1)
    return weights @ value


def _tokens_and_projections() -> tuple[Tensor, Tensor]:
    return normal("tokens", 64, 32), normal("projections", 3, 32, 32) / 32**0.5


def reach_of_attention() -> float:
    """Return the share of pairs (output token, input token) with a gradient in one layer."""
    tokens, projections = _tokens_and_projections()
    rows = torch.func.jacrev(lambda x: attend(x, projections).sum(-1))(tokens)  # (N, N, d)
    return (rows.abs().amax(-1) > 0).double().mean().item()


def reach_of_convolution(side: int = 8) -> tuple[float, int, int]:
    """Return how far a 3x3 convolution of an image of side x side pixels reaches.

    The numbers are the share of pairs (output, pixel) with a gradient, the most pixels that one
    output depends on, and the most pixels that two outputs at least 3 pixels apart have in common.
    """
    kernel = normal("kernel", 1, 1, 3, 3)

    def convolve(image: Tensor) -> Tensor:
        return nn.functional.conv2d(image.view(1, 1, side, side), kernel, padding=1).flatten()

    touched = torch.func.jacrev(convolve)(normal("image", side * side)).abs() > 0
    places = torch.cartesian_prod(torch.arange(side), torch.arange(side)).double()
    is_far = torch.cdist(places, places, p=float("inf")) >= 3
    shared = touched.double() @ touched.double().mT
    return touched.double().mean().item(), int(touched.sum(1).max()), int(shared[is_far].max())


def permutation_errors() -> dict[str, float]:
    """Return the largest differences between outputs of permuted and of original tokens.

    ``output`` compares token by token, ``equivariant`` permutes the output first, ``pooled``
    compares means over tokens, and ``positions`` compares means with positions added.
    """
    tokens, projections = _tokens_and_projections()
    order = torch.randperm(len(tokens), generator=keyed_generator("claims", "order"))
    positions = normal("positions", *tokens.shape)
    plain, moved = attend(tokens, projections), attend(tokens[order], projections)
    placed = [attend(x + positions, projections).mean(0) for x in (tokens, tokens[order])]
    return {
        "output": (moved - plain).abs().max().item(),
        "equivariant": (moved - plain[order]).abs().max().item(),
        "pooled": (moved.mean(0) - plain.mean(0)).abs().max().item(),
        "positions": (placed[1] - placed[0]).abs().max().item(),
    }


def norm_errors(norm: Callable[[Tensor], Tensor]) -> dict[str, float]:
    """Return how much the outputs of an image depend on what it is normalised with.

    ``alone`` normalises the image without the others of its batch, ``padded`` with twice as many
    tokens, the second half zeros, ``divided`` with half of the batch. Each is the RMS difference
    from the output in the whole batch; the outputs (B, N, D) of ``norm`` have variance 1.
    """
    images = 1 + normal("norm", 32, 16, 8) + normal("levels", 32, 1, 1)
    whole = norm(images)[:1]
    padded = norm(torch.cat([images, torch.zeros_like(images)], 1))[:1, :16]
    outputs = {"alone": norm(images[:1]), "padded": padded, "divided": norm(images[:16])[:1]}
    return {name: (out - whole).square().mean().sqrt().item() for name, out in outputs.items()}


def layer_norm(tokens: Tensor) -> Tensor:
    return nn.functional.layer_norm(tokens, tokens.shape[-1:])


def batch_norm(tokens: Tensor) -> Tensor:
    """Normalise with the statistics of each feature over batch and tokens."""
    return nn.functional.batch_norm(tokens.flatten(0, 1), None, None, training=True).view_as(tokens)
