"""What the report says of its attention maps, each claim with a number and a verdict.

Section V.C of the report: layer 1 attends to neighbouring patches, layer 3 more broadly, layer 6
(the last) globally, and CLS aggregates information widely.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from vitcli.runner.visualize.attention_numbers import AttentionNumbers
from vitcli.runner.visualize.statistics import mean_and_error, plus_minus

LOCAL, GLOBAL = 0.5, 0.9
"""Attention is called local below half of the distance of uniform attention, global from nine
tenths of it on."""
WIDE, NARROW = 0.5, 0.1
"""CLS reads widely where its attention to patches is spread as over half of them, and not where
it is spread as over less than a tenth, or where less than half of it goes to patches at all."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One sentence of the report, what was measured for it, and whether it holds here."""

    claim: str
    measured: str
    verdict: str


def judge(numbers: AttentionNumbers) -> list[Claim]:
    """Every claim, on the layers of this model that correspond: first, middle, last."""
    depth = numbers.distance.shape[1]
    ratio = numbers.distance.double().mean((0, 2)) / numbers.uniform  # (L,)
    first, middle, last = (ratio[i].item() for i in (0, (depth - 1) // 2, depth - 1))
    near = numbers.near.double().mean((0, 2))[0].item()
    return [
        Claim(
            claim="Layer 1 attends to neighbouring patches",
            measured=f"{first:.2f} of the distance of uniform attention;"
            f" {100 * near:.0f} % of it within the 3x3 patches around"
            f" (uniform: {100 * numbers.uniform_near:.0f} %)",
            verdict="holds" if first < LOCAL else "does not hold" if first >= GLOBAL else "in part",
        ),
        Claim(
            claim=f"Layer {(depth + 1) // 2} attends more broadly",
            measured=_further(numbers, 0, (depth - 1) // 2),
            verdict=_compared(numbers, 0, (depth - 1) // 2),
        ),
        Claim(
            claim=f"Layer {depth} attends globally",
            measured=f"{last:.2f} of the distance of uniform attention"
            f" (layer {(depth + 1) // 2}: {middle:.2f})",
            verdict=_global(last, depth),
        ),
        _cls(numbers),
    ]


def _global(ratio: float, depth: int) -> str:
    if depth == 1:
        return "cannot be asked"
    return "holds" if ratio >= GLOBAL else "does not hold" if ratio < LOCAL else "in part"


def layer_difference(numbers: AttentionNumbers, one: int, other: int) -> tuple[float, float | None]:
    """Distance of a layer minus that of another, paired by image: mean and half its interval."""
    means: Tensor = numbers.distance.double().mean(2)  # (n, L)
    return mean_and_error(means[:, other] - means[:, one])


def _further(numbers: AttentionNumbers, one: int, other: int) -> str:
    if one == other:
        return "the model has no layer between"
    return f"{plus_minus(*layer_difference(numbers, one, other))} pixels against layer {one + 1}"


def _compared(numbers: AttentionNumbers, one: int, other: int) -> str:
    if one == other:
        return "cannot be asked"
    mean, error = layer_difference(numbers, one, other)
    if error is None or abs(mean) <= error:
        return "undecided"
    return "holds" if mean > 0 else "does not hold"


def _cls(numbers: AttentionNumbers) -> Claim:
    claim = "CLS aggregates information widely"
    if numbers.cls_entropy is None or numbers.cls_to_patches is None:
        return Claim(claim=claim, measured="the model has no CLS", verdict="cannot be asked")
    reach = torch.exp(numbers.cls_entropy[:, -1].double()).mean(1)  # (n,) patches
    mean, error = mean_and_error(reach)
    given = numbers.cls_to_patches[:, -1].double().mean().item()
    share = mean / numbers.num_patches
    if share < NARROW or given < 0.5:
        verdict = "does not hold"
    else:
        verdict = "holds" if share >= WIDE else "in part"
    return Claim(
        claim=claim,
        measured=f"in the last layer {100 * given:.0f} % of its attention goes to patches, spread"
        f" as evenly over {plus_minus(mean, error, '.1f')} of {numbers.num_patches} (exp of the"
        " entropy, mean of the heads)",
        verdict=verdict,
    )
