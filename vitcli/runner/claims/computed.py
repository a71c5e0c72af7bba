"""Claims that a computation decides: on random tensors with fixed seeds, on models, on schedules.

Every function returns its numbers. ``by_computation.py`` turns them into verdicts, and ``vitcli
explain`` shows them. Axes: N tokens, d width of a head, B batch.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vitcli.core.randomness import keyed_generator

SEEDS = tuple(range(8))


def normal(name: str, *shape: int) -> Tensor:
    """Return standard normal numbers in float64 that depend on the name alone."""
    return torch.randn(shape, generator=keyed_generator("claims", name), dtype=torch.float64)


def misordered_share(width: int = 64, count: int = 20000, *, equal_norms: bool = False) -> float:
    """Return how often the key with the higher dot product has the lower cosine.

    Queries and pairs of keys are normal, or normal with keys of length 1.
    """
    query, keys = normal("query", count, width), normal("keys", 2, count, width)
    if equal_norms:
        keys = keys / keys.norm(dim=-1, keepdim=True)
    dots = (keys * query).sum(-1)
    cosines = dots / keys.norm(dim=-1)
    return ((dots[0] > dots[1]) != (cosines[0] > cosines[1])).double().mean().item()


def score_variance(width: int, variance: float = 1.0, count: int = 20000) -> tuple[float, float]:
    """Return the variance of scores before and after the division by sqrt(d).

    Queries and keys are independent and normal with this variance.
    """
    parts = normal(f"scores {width}", 2, count, width) * variance**0.5
    scores = (parts[0] * parts[1]).sum(-1)
    return scores.var().item(), (scores / width**0.5).var().item()


def softmax_extremes() -> tuple[float, float]:
    """Return the largest distance of a row sum from 1 and the smallest weight.

    The scores include +-1e4 and equal rows, as fp32 numbers.
    """
    scores = normal("softmax", 64, 64).float()
    rows = torch.cat([scores, 1e4 * scores, torch.zeros(1, 64), torch.full((1, 64), -1e4)])
    weights = rows.softmax(-1)
    return (weights.sum(-1) - 1).abs().max().item(), weights.min().item()


def attend(tokens: Tensor, projections: Tensor) -> Tensor:
    """Return the output of self-attention: (N, d) and (3, d, d) -> (N, d)."""
    query, key, value = tokens @ projections
    weights = (query @ key.mT / tokens.shape[-1] ** 0.5).softmax(-1)
    return weights @ value


def _attention_case(tokens: int = 64, width: int = 32) -> tuple[Tensor, Tensor]:
    return normal("tokens", tokens, width), normal("projections", 3, width, width) / width**0.5


def reach_of_attention() -> float:
    """Return the share of pairs (output token, input token) with a gradient in one layer."""
    tokens, projections = _attention_case()
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
    tokens, projections = _attention_case()
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


def attention_exponents() -> tuple[float, float]:
    """Return the exponents of N and of d in the counted operations of softmax attention."""
    from torch.utils.flop_counter import FlopCounterMode

    def count(tokens: int, width: int) -> int:
        heads = torch.empty(1, 1, tokens, width, device="meta")
        with FlopCounterMode(display=False) as counter:
            (heads @ heads.mT).softmax(-1) @ heads
        return int(counter.get_total_flops())

    def exponent(small: int, large: int) -> float:
        return float(torch.tensor(large / small).log2())

    base = count(64, 64)
    return exponent(base, count(128, 64)), exponent(base, count(64, 128))


def gradient_shares(residual: str, norm: str) -> list[float]:
    """Return the gradient at the first block's input over that at the last block's output.

    There is a number for each seed: initial weights, the block of the training notes (no biases and
    no output projection in attention), 5 layers.

    Args:
        residual: Row of ``model.residual``.
        norm: Row of ``model.norm``; the notes' block has none.
    """
    shares = []
    for seed in SEEDS:
        fields = {"qkv_bias": False, "attn_proj": False, "residual": residual, "norm": norm}
        model = small_vit(seed, depth=5, **fields)
        first = model.embed(normal(f"images {seed}", 16, 3, 32, 32).float())
        first = last = first.detach().requires_grad_()
        for block in model.blocks:
            last = block(last)
        last.retain_grad()
        logits = model.forward_head(model.last_norm(last))
        nn.functional.cross_entropy(logits, torch.arange(16) % 10).backward()
        shares.append((first.grad.norm() / last.grad.norm()).item())
    return shares


def readable_shares(residual: str, depth: int = 6) -> list[float]:
    """Return how well patches are read from the last tokens by a linear map, for each seed.

    The number is R^2 on held-out tokens of a model with initial weights: 1 is perfect.
    """
    return [_read_patches(small_vit(seed, depth=depth, residual=residual)) for seed in SEEDS]


@torch.no_grad()
def _read_patches(model: Any, count: int = 64) -> float:
    images = normal("patches", count, 3, 32, 32).float()
    patches = nn.functional.unfold(images, 4, stride=4).mT.flatten(0, 1)  # (B N, 48)
    tokens = model.forward_features(images)[:, -64:].flatten(0, 1)
    tokens = torch.cat([tokens, torch.ones(len(tokens), 1)], 1).double()
    half = len(tokens) // 2
    gram = tokens[:half].mT @ tokens[:half]
    gram = gram + 1e-4 * gram.diagonal().mean() * torch.eye(len(gram))
    solved = torch.linalg.solve(gram, tokens[:half].mT @ patches[:half].double())
    error = (tokens[half:] @ solved - patches[half:]).square().mean()
    return float(1 - error / patches[half:].double().var())


def small_vit(seed: int, **fields: Any) -> Any:
    """Return an untrained ViT of width 64 with 4x4 patches."""
    from vitcli.core.models.vit import build_vit
    from vitcli.core.spec.families import VitSpec

    shape = {"embed_dim": 64, "num_heads": 4, "mlp_ratio": 2.0, "patch_size": 4}
    spec = VitSpec(**{"img_size": 32, "in_chans": 3, "num_classes": 10} | shape | fields)
    return build_vit(spec, seed)


def norm_errors(norm: Callable[[Tensor], Tensor]) -> dict[str, float]:
    """Return how much the outputs of an image depend on what it is normalised with.

    ``alone`` normalises the image without the others of its batch, ``padded`` with twice as many
    tokens, the second half zeros, ``divided`` with half of the batch. Each is the RMS difference
    from the output in the whole batch; the outputs have variance 1.

    Args:
        norm: (B, N, D) -> (B, N, D).
    """
    images = 1 + normal("norm", 32, 16, 8) + normal("levels", 32, 1, 1)
    whole = norm(images)[:1]
    padded = norm(torch.cat([images, torch.zeros_like(images)], 1))[:1, :16]
    found = {"alone": norm(images[:1]), "padded": padded, "divided": norm(images[:16])[:1]}
    return {name: (each - whole).square().mean().sqrt().item() for name, each in found.items()}


def layer_norm(tokens: Tensor) -> Tensor:
    return nn.functional.layer_norm(tokens, tokens.shape[-1:])


def batch_norm(tokens: Tensor) -> Tensor:
    """Normalise with the statistics of each feature over batch and tokens."""
    return nn.functional.batch_norm(tokens.flatten(0, 1), None, None, training=True).view_as(tokens)


def head_overlaps(weights: Sequence[Tensor], num_heads: int) -> list[float]:
    """Return the overlap of the key subspaces of each pair of heads of each layer.

    The overlap is the mean squared cosine of the principal angles between the row spaces: 1 for
    equal subspaces, 0 for orthogonal ones.

    Args:
        weights: Key projection of each layer, (D, D).
        num_heads: Number of heads.
    """
    overlaps = []
    for weight in weights:
        bases = [torch.linalg.qr(head.mT.double())[0] for head in weight.chunk(num_heads)]
        overlaps += [
            ((bases[i].mT @ bases[j]).square().sum() / bases[i].shape[1]).item()
            for i in range(num_heads)
            for j in range(i)
        ]
    return overlaps


def random_overlaps(layers: int, width: int, num_heads: int) -> list[float]:
    """Return the mean ``head_overlaps`` of random weights, for each of 20 draws."""
    means = []
    for draw in range(20):
        weights = normal(f"subspaces {draw}", layers, width, width)
        found = head_overlaps(list(weights), num_heads)
        means.append(sum(found) / len(found))
    return means


def untrained_reach(spec: Any, init: str) -> float:
    """Return how far the last layer of an untrained model attends, over uniform attention.

    Args:
        spec: A ViT with softmax attention.
        init: Row of ``model.init``. Pictures are noise; the number is the mean over 4 seeds.
    """
    from vitcli.core.inspect.statistics import attention_distance, uniform_distance
    from vitcli.core.models.build import build_model

    reached = []
    for seed in SEEDS[:4]:
        model: Any = build_model(spec.replace(init=init), seed).eval()
        images = normal(f"noise {seed}", 8, spec.in_chans, *spec.img_size).float()
        last = len(model.blocks) - 1
        with torch.no_grad():
            weights = model.attention_weights(images, [last])[last]
        far = attention_distance(weights, model.grid_size, spec.patch_size)
        reached.append(far.mean().item() / uniform_distance(model.grid_size, spec.patch_size))
    return sum(reached) / len(reached)


def rate_of_report() -> tuple[float, int, int]:
    """Return the last rate of the course report's schedule, and two epochs.

    The first epoch is that in which the rate falls below 0.001, the second that of the peak. The
    largest rate is 0.1; 300 epochs of 500 steps, 5 % of them warm-up.
    """
    from vitcli.core.train.schedule import lr_factor

    def rate(epoch: float) -> float:
        step, steps = round(500 * epoch), {"warmup_steps": 150000 // 20, "num_steps": 150000}
        return 0.1 * lr_factor(step, schedule="cosine", **steps)

    peak = max(range(301), key=rate)
    passed = next(epoch for epoch in range(peak, 301) if rate(epoch) < 0.001)
    return rate(300 - 1 / 500), passed, peak
