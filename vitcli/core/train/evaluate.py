"""Logits and scores of a classifier. Axes: B batch, N images, K classes."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitcli.core.data.batches import eval_batches
from vitcli.core.data.source import Images, evenly_spaced
from vitcli.core.spec import ExperimentSpec
from vitcli.core.train.fit import autocast_to

LIMITED = 500
"""Images of a split that count as one batch of ``train.limit_batches``."""
IMAGES_AT_ONCE = {"cpu": 100}
"""By kind of device: a CPU evaluates 100 images at once 1.4 to 1.8 times as fast as 500
(``python experiments/speed/eval_portions.py``)."""


def images_at_once(device: torch.device) -> int:
    """Return how many images an evaluation passes to the model at once."""
    return IMAGES_AT_ONCE.get(device.type, 500)


@torch.inference_mode()
def compute_logits(
    model: nn.Module,
    batches: Iterable[dict[str, Tensor]],
    *,
    autocast: torch.dtype | None = None,
    flip: bool = False,
) -> Tensor:
    """Return fp32 logits (N, K) of all images, in order, on the device of the batches.

    The model runs in eval mode. With ``flip`` (test-time augmentation) the result is the logarithm
    of the mean probability over the image and its mirror image.
    """
    was_training = model.training
    model.eval()
    rows = []
    for batch in batches:
        images = batch["images"]
        with autocast_to(images.device, autocast):
            logits = model(images).float()
            if flip:
                mirrored = model(images.flip(-1)).float()
                mean = torch.stack([logits, mirrored]).log_softmax(-1).logsumexp(0)
                logits = mean - math.log(2)
        rows.append(logits)
    model.train(was_training)
    return torch.cat(rows)


def limit_images(images: Images, spec: ExperimentSpec) -> Images:
    """Return the images of a split that ``train.limit_batches`` leaves, evenly spaced."""
    limit = spec.train.limit_batches
    return evenly_spaced(images, limit * LIMITED) if limit else images


def logits_and_labels(
    model: nn.Module, images: Images, spec: ExperimentSpec, *, flip: bool = False
) -> tuple[Tensor, Tensor]:
    """Return logits (N, K) in fp32 and labels (N,) of a split, normalised as the spec says.

    ``train.limit_batches`` limits the split too, to evenly spaced images. ``flip`` averages over
    each image and its mirror image.
    """
    data = spec.data
    assert data.mean is not None
    assert data.std is not None
    part = limit_images(images, spec)
    size = images_at_once(images.pixels.device)
    batches = eval_batches(part, mean=data.mean, std=data.std, batch_size=size)
    return compute_logits(model, batches, flip=flip), part.labels


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Scores of a classifier. Accuracies are shares (0 to 1); the loss is in nats."""

    num_images: int
    accuracy: float
    top5_accuracy: float
    loss: float
    calibration_error: float
    accuracy_interval: tuple[float, float]
    """95 % Wilson interval: the sampling error of the test set alone."""
    per_class: tuple[float | None, ...]
    """Accuracy on the images of each class; None for a class without images."""
    confusion: tuple[tuple[int, ...], ...]
    """Rows are true classes, columns predicted ones."""


def score(logits: Tensor, labels: Tensor) -> Scores:
    """Return the scores of logits (N, K) for labels (N,).

    Raises:
        ValueError: A logit is infinite or NaN.
    """
    if not logits.isfinite().all():
        raise ValueError("a logit is infinite or NaN")
    logits, labels = logits.double().cpu(), labels.cpu()
    num_images, num_classes = logits.shape
    predicted = logits.argmax(-1)
    correct = predicted == labels
    top = logits.topk(min(5, num_classes), dim=-1).indices
    confusion = torch.bincount(labels * num_classes + predicted, minlength=num_classes**2)
    confusion = confusion.view(num_classes, num_classes)
    counts = confusion.sum(1)
    hits = zip(confusion.diag().tolist(), counts.tolist(), strict=True)
    return Scores(
        num_images=num_images,
        accuracy=correct.double().mean().item(),
        top5_accuracy=(top == labels[:, None]).any(-1).double().mean().item(),
        loss=F.cross_entropy(logits, labels).item(),
        calibration_error=expected_calibration_error(logits.softmax(-1), labels),
        accuracy_interval=wilson_interval(int(correct.sum()), num_images),
        per_class=tuple(hit / count if count else None for hit, count in hits),
        confusion=tuple(tuple(row) for row in confusion.tolist()),
    )


def expected_calibration_error(probabilities: Tensor, labels: Tensor, num_bins: int = 15) -> float:
    """Return the mean gap between confidence and accuracy over equal-width bins of confidence.

    A bin's weight is its number of images. Guo et al. 2017, https://arxiv.org/abs/1706.04599
    """
    confidence, predicted = probabilities.max(-1)
    bins = (confidence * num_bins).long().clamp(max=num_bins - 1)
    gap = (predicted == labels).double() - confidence
    per_bin = torch.zeros(num_bins, dtype=torch.float64).index_add_(0, bins, gap)
    return (per_bin.abs().sum() / len(labels)).item()


def wilson_interval(successes: int, trials: int, z: float = 1.959964) -> tuple[float, float]:
    """Return the score interval of Wilson 1927 for a proportion; ``z`` defaults to 95 %."""
    share = successes / trials
    centre = share + z * z / (2 * trials)
    spread = z * (share * (1 - share) / trials + z * z / (4 * trials * trials)) ** 0.5
    scale = 1 + z * z / trials
    return (centre - spread) / scale, (centre + spread) / scale
