"""The portions of an evaluation, and the logits of a classifier. Axes: N images, K classes."""

import math
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitcli.core.data.batches import eval_batches
from vitcli.core.data.source import Images, evenly_spaced
from vitcli.core.spec import ExperimentSpec
from vitcli.core.train.autocast import autocast_to

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
    of the mean probability over the image and its mirror image. On CUDA the last batch is padded to
    the size of the others, so that a compiled model sees one shape.
    """
    was_training = model.training
    model.eval()
    rows, size = [], 0
    for batch in batches:
        images = batch["images"]
        count, size = len(images), max(size, len(images))
        if images.is_cuda and count < size:
            images = F.pad(images, (0, 0, 0, 0, 0, 0, 0, size - count))
        with autocast_to(images.device, autocast):
            logits = model(images).float()
            if flip:
                mirrored = model(images.flip(-1)).float()
                mean = torch.stack([logits, mirrored]).log_softmax(-1).logsumexp(0)
                logits = mean - math.log(2)
        rows.append(logits[:count])
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
