"""Measure a model on a split of its data set, always in fp32 and always the same way."""

import io
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from vitcli.core.data.batches import eval_batches
from vitcli.core.data.source import Images
from vitcli.core.spec import ExperimentSpec
from vitcli.core.train.evaluate import compute_logits
from vitcli.runner.files import commit

LIMITED = 500
"""Images that ``train.limit_batches`` counts as one batch here."""
BATCHES = {"cpu": 100}
"""Images at once, by kind of device: on a CPU 100 are 1.4 to 1.8 times as fast as 500
(experiments/speed/eval_portions.py)."""


def logits_and_labels(
    model: nn.Module, images: Images, spec: ExperimentSpec, *, flip: bool = False
) -> tuple[Tensor, Tensor]:
    """Logits (N, K) and labels (N,) of a split, normalised as the spec says.

    ``train.limit_batches`` limits this too, to so many times 500 images, evenly spaced over the
    split, which is sorted by class. ``flip`` averages over each image and its mirror image.
    """
    assert spec.data.mean is not None
    assert spec.data.std is not None
    limit = spec.train.limit_batches
    part = images
    if limit and limit * LIMITED < len(images):
        index = torch.arange(limit * LIMITED, device=images.labels.device) * len(images)
        index //= limit * LIMITED
        part = Images(images.pixels[index], images.labels[index])
    size = BATCHES.get(images.pixels.device.type, 500)
    batches = eval_batches(part, mean=spec.data.mean, std=spec.data.std, batch_size=size)
    return compute_logits(model, batches, flip=flip), part.labels


def save_predictions(path: Path, logits: Tensor, labels: Tensor) -> None:
    """Logits (N, K) and labels (N,) as one .npz file."""
    with io.BytesIO() as file:
        np.savez(file, logits=logits.cpu().numpy(), labels=labels.cpu().numpy())
        commit(path, file.getvalue())
