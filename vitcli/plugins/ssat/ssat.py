"""Classification and masked reconstruction in one training.

Axes: B batch, N images, C channels, H W pixels, P patches, K classes.
"""

from functools import cached_property
from typing import cast

import torch
from torch import Tensor, nn

from vitcli.core.data.batches import Batch, EpochPlan, epoch_rows, num_batches
from vitcli.core.data.source import DataSet, Images
from vitcli.core.objectives.classify import Classify
from vitcli.core.objectives.objective import Outputs
from vitcli.core.randomness import seed_of
from vitcli.core.spec import AugmentSpec, ExperimentSpec
from vitcli.core.torch_use import pinned
from vitcli.plugins.mae.mae import NOISE, MaskedModel, MaskedTask, draw_noise, mean_errors
from vitcli.plugins.ssat.spec import SsatSpec

OTHERS = "others"
"""Name in a batch of the images to reconstruct."""
PREFIX = f"{OTHERS}."
"""Start of the names of tables of other images than those to classify."""
UNPREDICTABLE = ("crop", "erase", "lam", "box", "own")
"""Tables of augmentations that images to reconstruct do not have."""


class ClassifyingAutoencoder(MaskedModel):
    """A classifier whose encoder also serves a masked autoencoder."""

    def forward(  # type: ignore[override]
        self, images: Tensor, others: Tensor | None = None, noise: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Return the logits (B, K); with noise (B, P) also the errors (B,) of masked ``others``."""
        logits: Tensor = self.encoder(images)
        if others is None or noise is None:
            return logits
        return logits, self.errors(others, noise)


class Ssat(MaskedTask, Classify):
    """The weighted sum of the cross-entropy and of the error of masked patches.

    Das et al. 2024, https://arxiv.org/abs/2310.20704. One encoder classifies whole images and,
    with a decoder, reconstructs the same images from their visible patches. Extension: if
    ``data.labels`` is set, the reconstructed images are a second batch of B images, which goes
    through all training images again and again. Deviation: the reconstructed images are flipped and
    changed by a policy, but not cropped, erased or mixed. Here a crop has black borders, which
    cannot be predicted.
    """

    minimises_cross_entropy = False
    make_module = ClassifyingAutoencoder

    def __init__(self, spec: ExperimentSpec, module: nn.Module) -> None:
        super().__init__(spec, module)
        self._passes: dict[int, EpochPlan] = {}
        """Tables of the last passes through the unlabelled images, by number."""

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        logits, errors = self.network(batch["images"], batch[OTHERS], batch[NOISE])
        found = self.class_losses(logits.float(), batch["targets"])
        weight, error = cast(SsatSpec, self.spec.task).class_weight, errors.mean()
        loss = weight * found["loss"] + (1 - weight) * error
        return {"loss": loss, "accuracy": found["accuracy"], "masked_mse": error.detach()}

    def rows(self, data: DataSet, epoch: int) -> EpochPlan:
        rows = super().rows(data, epoch)
        if data.unlabelled is None:
            return rows
        others = self._rows_of_others(data.unlabelled, len(data.train), epoch)
        return rows | (pinned(others) if data.train.pixels.is_cuda else others)

    def _rows_of_others(self, images: Images, num_labelled: int, epoch: int) -> EpochPlan:
        """Return the tables of one unlabelled image for each labelled one.

        The unlabelled images are taken pass by pass. The order, the augmentation and the mask of an
        image are functions of the seed and the number of the pass.
        """
        size, total = self.spec.train.batch_size, len(images)
        first = epoch * num_batches(num_labelled, size) * size
        parts: list[EpochPlan] = []
        for number in range(first // total, (first + num_labelled - 1) // total + 1):
            start = first - number * total
            here = slice(max(start, 0), start + num_labelled)
            rows = self._rows_of_pass(images, number)
            parts.append({name: table[here] for name, table in rows.items()})
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    def _rows_of_pass(self, images: Images, number: int) -> EpochPlan:
        if number in self._passes:
            return self._passes[number]
        seed, is_cuda = seed_of(OTHERS, self.spec.seed), images.pixels.is_cuda
        size, augment = images.pixels.shape[-2:], self._augment_others
        rows = epoch_rows(len(images), size, augment, seed=seed, epoch=number, at_once=is_cuda)
        noise = draw_noise(len(images), self.num_patches, seed, number)
        named = {f"{PREFIX}{name}": table for name, table in rows.items()}
        before = {key: rows for key, rows in self._passes.items() if key == number - 1}
        self._passes = before | {number: named | {NOISE: noise[rows["index"]]}}
        return self._passes[number]

    @cached_property
    def _augment_others(self) -> AugmentSpec:
        off = {"crop_padding": 0, "erasing": 0.0, "mixup": 0.0, "cutmix": 0.0}
        return self.spec.data.augment.replace(**off)

    def make_batch(self, data: DataSet, rows: EpochPlan) -> Batch:
        batch = super().make_batch(data, rows)
        images = data.all_train
        others = {k.removeprefix(PREFIX): rows[k] for k in rows if k.startswith(PREFIX)}
        if not others:
            others = {name: rows[name] for name in rows if name not in UNPREDICTABLE}
        augment = self._augment_others
        made = self.augmented_batch(images, others, augment, self._channels, data.num_classes)
        return batch | {OTHERS: made["images"]}

    def outputs(self, module: nn.Module, images: Images) -> Outputs:
        return super().outputs(module, images) | self.reconstruction_errors(module, images)

    def measure(self, outputs: Outputs) -> dict[str, float]:
        return super().measure(outputs) | mean_errors(outputs)
