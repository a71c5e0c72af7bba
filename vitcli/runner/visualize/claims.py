"""The report's claims about attention maps, each with a measured number and a verdict.

The report "Attention Mechanisms and Transformers for Visual Recognition" says in section V.C:
layer 1 attends to neighbouring patches, layer 3 attends more broadly, layer 6 (the last) attends
globally, and CLS aggregates information widely.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from vitcli.runner.visualize.attention_numbers import AttentionNumbers
from vitcli.runner.visualize.statistics import mean_and_error, plus_minus

LOCAL, GLOBAL = 0.5, 0.9
"""Attention is local if its distance is less than half of the distance of uniform attention. It is
global if its distance is at least nine tenths of the distance of uniform attention."""
WIDE, NARROW = 0.5, 0.1
"""CLS aggregates widely if the entropy of its attention equals that of uniform attention to half of
the patches or more. The claim does not hold below a tenth of the patches, or if less than half of
the attention of CLS goes to patches."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Claim of the report, the number measured for it, and whether it holds for this model."""

    claim: str
    measured: str
    verdict: str


def judge_claims(numbers: AttentionNumbers) -> list[Claim]:
    """Judge every claim on the corresponding layers of this model: first, middle and last."""
    depth = numbers.distance.shape[1]
    ratio = numbers.distance.double().mean((0, 2)) / numbers.uniform  # (L,)
    first, middle, last = (ratio[i].item() for i in (0, (depth - 1) // 2, depth - 1))
    near = numbers.near.double().mean((0, 2))[0].item()
    return [
        Claim(
            claim="Layer 1 attends to neighbouring patches",
            measured=f"{first:.2f} of the distance of uniform attention;"
            f" {100 * near:.0f} % of the attention stays within 3x3 patches"
            f" (uniform: {100 * numbers.uniform_near:.0f} %)",
            verdict="holds" if first < LOCAL else "does not hold" if first >= GLOBAL else "in part",
        ),
        Claim(
            claim=f"Layer {(depth + 1) // 2} attends more broadly",
            measured=_describe_difference(numbers, 0, (depth - 1) // 2),
            verdict=_judge_difference(numbers, 0, (depth - 1) // 2),
        ),
        Claim(
            claim=f"Layer {depth} attends globally",
            measured=f"{last:.2f} of the distance of uniform attention"
            f" (layer {(depth + 1) // 2}: {middle:.2f})",
            verdict=_judge_last_layer(last, depth),
        ),
        _judge_cls(numbers),
    ]


def _judge_last_layer(ratio: float, depth: int) -> str:
    if depth == 1:
        return "cannot be asked"
    return "holds" if ratio >= GLOBAL else "does not hold" if ratio < LOCAL else "in part"


def layer_difference(numbers: AttentionNumbers, one: int, other: int) -> tuple[float, float | None]:
    """Return the distance of layer ``other`` minus that of layer ``one``, paired by image.

    The result is the mean and half its 95 % interval.
    """
    means: Tensor = numbers.distance.double().mean(2)  # (n, L)
    return mean_and_error(means[:, other] - means[:, one])


def _describe_difference(numbers: AttentionNumbers, one: int, other: int) -> str:
    if one == other:
        return "the model has no middle layer"
    return f"{plus_minus(*layer_difference(numbers, one, other))} pixels against layer {one + 1}"


def _judge_difference(numbers: AttentionNumbers, one: int, other: int) -> str:
    if one == other:
        return "cannot be asked"
    mean, error = layer_difference(numbers, one, other)
    if error is None or abs(mean) <= error:
        return "undecided"
    return "holds" if mean > 0 else "does not hold"


def _judge_cls(numbers: AttentionNumbers) -> Claim:
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
        measured=f"in the last layer {100 * given:.0f} % of the attention of CLS goes to patches;"
        f" it covers {plus_minus(mean, error, '.1f')} of {numbers.num_patches} patches (exp of the"
        " entropy, mean of the heads)",
        verdict=verdict,
    )
