"""Which of several models suits one's pictures: probes on their features, each image in one fold.

Axes: N images, F features, K classes.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitcli.core.data.batches import LIMITED, split_batches
from vitcli.core.data.source import DataSet, Images, evenly_spaced, together
from vitcli.core.metrics.classification import Scores, score
from vitcli.core.metrics.linear_probe import LinearProbe, apply
from vitcli.core.objectives.objective import task_class
from vitcli.core.spec import DataSpec
from vitcli.core.torch_use import evaluating
from vitcli.plugins.choose.curve import fold_probes
from vitcli.plugins.choose.models import Candidate
from vitcli.runner.data.find import own_path
from vitcli.runner.data.folds import linked_images, spread
from vitcli.runner.data.listing import group_of
from vitcli.runner.data.picture_reader import listed_for
from vitcli.runner.errors import InputError
from vitcli.runner.evaluate.trained_run import OnStage
from vitcli.runner.study.significance import MeanError

AT_ONCE, TURNS = 16, 5
"""Numbers of images and of passes of the model that its time is the median of."""
Numbers = NDArray[np.float64]
Groups = NDArray[np.int64]
"""Number of the group of each image, which varies together: (N,)."""


@dataclass(frozen=True, kw_only=True)
class Pictures:
    """The training images as the first model sees them, and how they are divided."""

    data: DataSet
    images: Images
    groups: Groups
    parts: Tensor
    """The fold of each image: (N,)."""
    unlinked: Sequence[str]
    """Classes whose pictures that look alike are in several folds."""

    def seen_by(self, data: DataSet) -> Images:
        """Return the same images, in the same order, as read for another model."""
        names, train = self.images.names, data.train
        if not names:  # the order of other data sets does not depend on the size
            return evenly_spaced(train, len(self.images))
        if {*names} - {*train.names}:  # another fifth is held out at this size
            train = together(train, data.test)
        place = {name: row for row, name in enumerate(train.names)}
        return train[torch.tensor([place[name] for name in names])]


@dataclass(frozen=True, kw_only=True)
class Probed:
    """What probes on the features of a model answer; none has seen the image."""

    candidate: Candidate
    features: Tensor
    probes: Sequence[LinearProbe]
    scores: Scores
    is_right: Numbers
    """1 for each image that is answered rightly, else 0: (N,)."""
    seconds_per_image: float


def divide_pictures(
    data: DataSet, spec: DataSpec, folds: int, limit_batches: int | None, data_dir: Path | None
) -> Pictures:
    """Return the training images in folds that divide no group and no copies."""
    images = evenly_spaced(data.train, limit_batches * LIMITED) if limit_batches else data.train
    is_own = own_path(spec.name, data_dir)
    groups_of = group_of(listed_for(spec, data_dir), spec.group) if is_own else {}
    groups, digests, unlinked, _ = linked_images(images, data.class_names, folds, groups_of)
    parts = spread(groups, images.labels.tolist(), digests, folds)
    return Pictures(data=data, images=images, groups=groups, parts=parts, unlinked=unlinked)


def probe(
    candidate: Candidate, pictures: Pictures, images: Images, device: torch.device, say: OnStage
) -> Probed:
    """Fit a probe outside each fold, and ask it about the images inside."""
    module, images = candidate.module.to(device), images.to(device)
    task = task_class(candidate.spec)(candidate.spec, module)
    stage = f"{candidate.name}: features of {len(images):,} images"
    say(stage, 0, len(images))
    features = task.features(module, images, lambda done: say(stage, done, len(images)))
    if not features.isfinite().all():
        raise InputError(f"{candidate.name}: a feature is infinite or NaN")
    parts, count = pictures.parts.to(device), pictures.data.num_classes
    on_fit = partial(say, f"{candidate.name}: probes")
    probes = fold_probes(features, images.labels, parts, count, on_fit)
    logits = features.new_zeros(len(images), count)
    for part, fitted in enumerate(probes):
        logits[parts == part] = apply(fitted.layer, features[parts == part])
    is_right = logits.argmax(1) == images.labels
    return Probed(
        candidate=candidate,
        features=features,
        probes=probes,
        scores=score(logits, images.labels),
        is_right=is_right.cpu().double().numpy(),
        seconds_per_image=_seconds_per_image(candidate, images[: min(AT_ONCE, len(images))]),
    )


@torch.inference_mode()
def _seconds_per_image(candidate: Candidate, images: Images) -> float:
    encoder, seconds = candidate.encoder, list[float]()
    (batch,) = split_batches(images, candidate.spec)
    with evaluating(encoder):
        for _ in range(TURNS):
            began = time.perf_counter()
            encoder.features(batch["images"]).sum().item()  # waits for the device
            seconds.append(time.perf_counter() - began)
    return median(seconds) / len(images)


def error_of(values: Numbers, groups: Groups, made_up: Sequence[float], folds: int) -> MeanError:
    """Return the mean of values of images (N,) and its error, if images of a group vary together.

    ``made_up`` are values of images that are added, each a group of its own: with [1, -1] for the
    differences of two models (Bonett and Price 2012, https://doi.org/10.3102/1076998611411915) and
    [1, 1, 0, 0] for one (Agresti and Coull 1998, https://doi.org/10.2307/2685469), intervals hold
    with few images, too, and are never empty. The variance grows by 1 / (folds - 1), because other
    images to learn from give other probes; ``experiments/statistics/more_pictures.py`` measures
    how often a difference is then false.
    """
    groups = np.concatenate([groups, groups.max() + 1 + np.arange(len(made_up))])
    values = np.concatenate([values, made_up])
    mean, count = float(values.mean()), int(groups.max()) + 1
    sums = np.bincount(groups, values - mean)
    variance = float(sums @ sums) / len(values) ** 2 * count / (count - 1) * folds / (folds - 1)
    return MeanError(
        mean=mean, variance=variance, seed_share=0.0, seed_freedom=1, image_freedom=count - 1
    )
