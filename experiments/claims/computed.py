"""Claims that a computation decides: on random tensors with fixed seeds, on models, on schedules.

Every function returns its numbers. ``by_computation.py`` turns them into verdicts. Numbers that
``vitcli explain`` shows too are in ``vitcli/plugins/explain/random_tensors.py``.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vitcli.plugins.explain.random_tensors import normal

SEEDS = tuple(range(8))


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


def softmax_extremes() -> tuple[float, float]:
    """Return the largest distance of a row sum from 1 and the smallest weight.

    The scores include +-1e4 and equal rows, as fp32 numbers.
    """
    scores = normal("softmax", 64, 64).float()
    rows = torch.cat([scores, 1e4 * scores, torch.zeros(1, 64), torch.full((1, 64), -1e4)])
    weights = rows.softmax(-1)
    return (weights.sum(-1) - 1).abs().max().item(), weights.min().item()


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
    from vitcli.core.models.image_model import build_model
    from vitcli.plugins.distance.statistics import attention_distance, uniform_distance

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
