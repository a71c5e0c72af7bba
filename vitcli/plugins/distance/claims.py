"""The report's claims about attention maps, each with a measured number and a verdict.

The report "Attention Mechanisms and Transformers for Visual Recognition" says in section V.C:
layer 1 attends to neighbouring patches, layer 3 attends more broadly, layer 6 (the last) attends
globally, and CLS aggregates information widely.

A claim can hold for a model that never learned anything. So every number is compared with those of
untrained models; ``Comparison`` explains how.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean, stdev
from typing import Any

import torch
from scipy import stats
from torch import Tensor

from vitcli.plugins.distance.attention_numbers import AttentionNumbers, UntrainedModels
from vitcli.runner.visualize.figure import LEVEL, mean_and_error

LOCAL, GLOBAL = 0.5, 0.9
"""Attention is local if its distance is less than half of the distance of uniform attention. It is
global if its distance is at least nine tenths of the distance of uniform attention."""
WIDE, NARROW = 0.5, 0.1
"""CLS aggregates widely if the entropy of its attention equals that of uniform attention to half of
the patches or more. The claim does not hold below a tenth of the patches, or if less than half of
the attention of CLS goes to patches."""
LIMITS = (
    'The claims are from the report "Attention Mechanisms and Transformers for Visual Recognition",'
    f" section V.C. Attention is local below {LOCAL} and global from {GLOBAL} of the distance of"
    " uniform attention; between these limits a claim holds in part. CLS aggregates widely if the"
    " exponential of its entropy covers at least half of the patches."
)
CANNOT = "cannot be asked"
SAME = "not distinguishable from an untrained model"
MORE = "more so in an untrained model"

Statistic = Callable[[AttentionNumbers], Tensor]
"""Returns the number that decides a claim for each image, (n,)."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One number of a trained model beside the same number of untrained models.

    Both sources of chance count. An untrained model is one unit: its number is a mean over images,
    and the prediction interval says where one more untrained model is expected. The error of the
    trained model is that of its images.
    """

    number: float
    """The mean of the trained model over its images."""
    error: float | None
    """Half the 95 % interval of this mean over images; None for one image."""
    low: float
    """Lower end of the 95 % prediction interval of untrained models."""
    high: float

    @property
    def is_below(self) -> bool:
        return self.error is not None and self.number + self.error < self.low

    @property
    def is_above(self) -> bool:
        return self.error is not None and self.number - self.error > self.high


def compare(trained: Tensor, untrained: Sequence[Tensor]) -> Comparison:
    """Compare a trained model with untrained ones; each tensor is one value per image, (n,)."""
    number, error = mean_and_error(trained)
    means = [mean_and_error(values)[0] for values in untrained]
    middle = fmean(means)
    quantile = float(stats.t.ppf((1 + LEVEL) / 2, len(means) - 1))
    half = quantile * stdev(means) * (1 + 1 / len(means)) ** 0.5
    return Comparison(number=number, error=error, low=middle - half, high=middle + half)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Claim of the report, the number measured for it, and whether it holds for this model."""

    claim: str
    measured: str
    verdict: str
    against_untrained: str = ""
    """``SAME`` or ``MORE``; empty if neither is so, or nothing was compared."""
    untrained: Comparison | None = None


def judge_claims(numbers: AttentionNumbers, untrained: UntrainedModels) -> list[Claim]:
    """Judge every claim on the corresponding layers of this model: first, middle and last."""
    depth = numbers.distance.shape[1]
    middle, last = (depth - 1) // 2, depth - 1
    rows: list[tuple[Claim, Statistic, bool]] = [
        (_judge_first(numbers), partial(_ratio, layer=0), False),
        (_judge_middle(numbers, middle), partial(_gain, layer=middle), True),
        (_judge_last(numbers, middle, last), partial(_ratio, layer=last), True),
        (_judge_cls(numbers), _cls_patches, True),
    ]
    return [
        claim if claim.verdict == CANNOT else _compare(claim, numbers, untrained, statistic, large)
        for claim, statistic, large in rows
    ]


def _compare(
    claim: Claim,
    numbers: AttentionNumbers,
    untrained: UntrainedModels,
    statistic: Statistic,
    large: bool,
) -> Claim:
    """Return the claim with its comparison; ``large``: the claim holds for large numbers."""
    found = compare(statistic(numbers), [statistic(each) for each in untrained.models])
    against = "" if found.is_below or found.is_above else SAME
    if claim.verdict in ("holds", "in part") and (found.is_below if large else found.is_above):
        against = MORE
    return replace(claim, untrained=found, against_untrained=against)


def describe_untrained(claim: Mapping[str, Any]) -> str:
    """Return the prediction interval of untrained models, such as ``0.97 to 1.02``."""
    found = claim.get("untrained")
    return f"{found['low']:.2f} to {found['high']:.2f}" if found else ""


def _ratio(numbers: AttentionNumbers, layer: int) -> Tensor:
    return numbers.distance[:, layer].double().mean(1) / numbers.uniform


def _gain(numbers: AttentionNumbers, layer: int) -> Tensor:
    """Return the distance of a layer minus that of layer 1 in pixels, by image."""
    distance = numbers.distance.double().mean(2)  # (n, L)
    return distance[:, layer] - distance[:, 0]


def _cls_patches(numbers: AttentionNumbers) -> Tensor:
    assert numbers.cls_entropy is not None
    return torch.exp(numbers.cls_entropy[:, -1].double()).mean(1)


def _judge_first(numbers: AttentionNumbers) -> Claim:
    first, near = _ratio(numbers, 0).mean().item(), numbers.near[:, 0].double().mean().item()
    return Claim(
        claim="Layer 1 attends to neighbouring patches",
        measured=f"{first:.2f} of the distance of uniform attention;"
        f" {100 * near:.0f} % of the attention stays within 3x3 patches"
        f" (uniform: {100 * numbers.uniform_near:.0f} %)",
        verdict="holds" if first < LOCAL else "does not hold" if first >= GLOBAL else "in part",
    )


def _judge_last(numbers: AttentionNumbers, middle: int, last: int) -> Claim:
    ratio, half_way = (_ratio(numbers, i).mean().item() for i in (last, middle))
    verdict = "holds" if ratio >= GLOBAL else "does not hold" if ratio < LOCAL else "in part"
    return Claim(
        claim=f"Layer {last + 1} attends globally",
        measured=f"{ratio:.2f} of the distance of uniform attention"
        f" (layer {middle + 1}: {half_way:.2f})",
        verdict=verdict if last else CANNOT,
    )


def _judge_middle(numbers: AttentionNumbers, middle: int) -> Claim:
    claim = f"Layer {middle + 1} attends more broadly"
    if not middle:
        return Claim(claim=claim, measured="the model has no middle layer", verdict=CANNOT)
    mean, error = mean_and_error(_gain(numbers, middle))
    verdict = "holds" if mean > 0 else "does not hold"
    if error is None or abs(mean) <= error:
        verdict = "undecided"
    measured = f"{plus_minus(mean, error)} pixels against layer 1"
    return Claim(claim=claim, measured=measured, verdict=verdict)


def _judge_cls(numbers: AttentionNumbers) -> Claim:
    claim = "CLS aggregates information widely"
    if numbers.cls_entropy is None or numbers.cls_to_patches is None:
        return Claim(claim=claim, measured="the model has no CLS", verdict=CANNOT)
    mean, error = mean_and_error(_cls_patches(numbers))
    given = numbers.cls_to_patches[:, -1].double().mean().item()
    share = mean / numbers.num_patches
    verdict = "holds" if share >= WIDE else "in part"
    if share < NARROW or given < 0.5:
        verdict = "does not hold"
    return Claim(
        claim=claim,
        measured=f"in the last layer {100 * given:.0f} % of the attention of CLS goes to patches;"
        f" it covers {plus_minus(mean, error, '.1f')} of {numbers.num_patches} patches (exp of the"
        " entropy, mean of the heads)",
        verdict=verdict,
    )


def plus_minus(mean: float, error: float | None, form: str = "+.2f") -> str:
    """Return text such as ``+1.39 +- 0.04``, without the second part if the error is None."""
    return format(mean, form) + ("" if error is None else f" +- {error:{form.lstrip('+z')}}")
