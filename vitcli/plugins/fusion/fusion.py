"""Classification of an image together with a sound.

Each image has a sound of its class, generated or read from a file. Sounds and noise are functions
of the image's content, its class and, in training, seed and epoch.

Axes: B batch, N images, C channels, H W pixels, T samples, M mel bands, F frames, K classes,
E width of the joint space.
"""

import math
from collections.abc import Iterator
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitcli.core.data.batches import Batch, EpochPlan, limit_images
from vitcli.core.data.source import DataSet, Images
from vitcli.core.metrics.classification import accuracy, measure_logits
from vitcli.core.objectives.objective import Outputs, Task
from vitcli.core.objectives.pictures import Grid, Heat, Picture
from vitcli.core.randomness import seed_of
from vitcli.core.ranks import gather
from vitcli.core.spec import ExperimentSpec
from vitcli.plugins.fusion.keys import content_keys, keys_for, noise, scramble
from vitcli.plugins.fusion.model import Alone, FusionModel, JointSpace, build_fusion
from vitcli.plugins.fusion.spec import FusionSpec
from vitcli.plugins.fusion.synthetic import spectrograms, synthesize, unit_rms

RETRIEVED = 1000
"""Number of pairs, evenly spaced over a split, among which sounds are retrieved."""


class Fusion(Task):
    """Cross-entropy of pairs, with modality dropout and optional further losses.

    Modality dropout: Neverova et al. 2015, https://arxiv.org/abs/1501.00102. Deviation: the first
    rows of a batch lose the image and the last rows lose the sound, in fixed numbers. The order of
    an epoch is random, so the choice is random too, and each part of a batch has a fixed shape.

    Losses of single modalities: Wang et al. 2020, https://arxiv.org/abs/1905.12681. Deviation: the
    paper estimates their weights, here both have the weight ``unimodal``.
    """

    encoder_name = "image"
    module: FusionModel

    def __init__(self, spec: ExperimentSpec, module: nn.Module) -> None:
        super().__init__(spec, module)
        self.options = cast(FusionSpec, spec.task)

    @classmethod
    def make_module(cls, spec: ExperimentSpec) -> FusionModel:
        return build_fusion(spec)

    def rows(self, data: DataSet, epoch: int) -> EpochPlan:
        """Return the rows of an epoch, with the key of its noise for each image."""
        rows = super().rows(data, epoch)
        key = seed_of("noise", self.spec.seed, epoch)
        return rows | {"noise": torch.full_like(rows["index"], key)}

    def make_batch(self, data: DataSet, rows: EpochPlan) -> Batch:
        """Return ``images``, ``sounds`` (B, 1, M, F) and ``targets``.

        MixUp and CutMix mix sounds by the share of the image's label, before the noise is added.
        """
        index = rows["index"]
        keys = content_keys(data.train.pixels[index])
        waves = self._waves(data.train, index, keys, held_out=False)
        if "own" in rows:
            waves = waves.roll(1, 0).lerp(waves, rows["own"][:, None].expand_as(waves))
        batch = super().make_batch(data, {k: v for k, v in rows.items() if k != "noise"})
        return self._add_noise(batch, waves, scramble(keys ^ rows["noise"]))

    def eval_batches(self, images: Images) -> Iterator[Batch]:
        """Yield the pairs of a split in order. Its speakers are not those of the training."""
        part, start = limit_images(images, self.spec), 0
        for batch in super().eval_batches(images):
            end = start + len(batch["images"])
            index = torch.arange(start, end, device=part.pixels.device)
            keys = content_keys(part.pixels[start:end])
            waves = self._waves(part, index, keys, held_out=True)
            yield self._add_noise(batch, waves, keys_for(keys, "noise", "evaluation"))
            start = end

    def _waves(self, images: Images, index: Tensor, keys: Tensor, *, held_out: bool) -> Tensor:
        """Return the sounds (B, T) of the images at ``index``, without noise."""
        if self.options.shuffle_sounds:
            index = keys_for(keys, "shuffled").remainder(len(images))
        if self.options.sound == "folder":
            return unit_rms(images.extra["sound"][index].float())
        num_classes = self.spec.model.num_classes or 1
        keys = keys_for(keys, "sound")
        return synthesize(keys, images.labels[index], num_classes, held_out=held_out)

    def _add_noise(self, batch: Batch, waves: Tensor, keys: Tensor) -> Batch:
        images = batch["images"]
        if level := self.options.image_noise:
            drawn = noise(keys_for(keys, "image"), images[0].numel())
            images = images + level * drawn.view_as(images)
        if level := self.options.sound_noise:
            waves = waves + level * noise(keys_for(keys, "sound"), waves.shape[1])
        return batch | {"images": images, "sounds": spectrograms(waves)}

    def check_data(self, data: DataSet) -> None:
        if self.options.sound == "folder" and "sound" not in data.train.extra:
            raise ValueError(
                f"task.sound: {data.name} has no sounds; add NAME.wav beside each NAME.png, or take"
                " task.sound=synthetic"
            )

    def alone(self, count: int) -> Alone:
        """Return how many images and sounds of a training batch are alone."""
        if self.options.modalities == "both":
            return (self.options.num_alone(count),) * 2
        return (count, 0) if self.options.modalities == "image" else (0, count)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Return the loss and the accuracy over all rows, those of one modality included."""
        targets = batch["targets"]
        num_images, num_sounds = self.alone(len(targets))
        found = self.network(batch["images"], batch["sounds"], (num_images, num_sounds))
        logits = found["logits"].float()
        loss = self._cross_entropy(logits, targets)
        if self.options.unimodal:
            image = self._cross_entropy(found["image_logits"], targets[num_sounds:])
            end = len(targets) - num_images
            sound = self._cross_entropy(found["sound_logits"], targets[:end])
            loss = loss + self.options.unimodal * (image + sound)
        if self.options.contrast:
            joint = self.module.get_submodule("joint")
            assert isinstance(joint, JointSpace)
            loss = loss + self.options.contrast * joint.loss(
                gather(found["image"]), gather(found["sound"])
            )
        labels = targets.argmax(-1) if targets.ndim == 2 else targets
        accuracy = (logits.detach().argmax(-1) == labels).float().mean()
        return {"loss": loss, "accuracy": accuracy}

    def _cross_entropy(self, logits: Tensor, targets: Tensor) -> Tensor:
        smoothing = self.spec.train.label_smoothing
        return F.cross_entropy(logits.float(), targets, label_smoothing=smoothing)

    @torch.inference_mode()
    def outputs(self, module: nn.Module, images: Images, *, flip: bool = False) -> Outputs:
        """Return ``logits``, ``image_logits`` and ``sound_logits`` (N, K), and ``labels`` (N,).

        ``image_logits`` and ``sound_logits`` are those without the other modality. With a
        contrastive loss there are ``image`` and ``sound`` (N, 64), the places in the joint space.
        """
        was_training = module.training
        module.eval()
        found: dict[str, list[Tensor]] = {"labels": []}
        size = 0
        for batch in self.eval_batches(images):
            size = max(size, len(batch["images"]))
            for name, values in self._evaluate(module, batch, size, flip).items():
                found.setdefault(name, []).append(values)
            found["labels"].append(batch["targets"])
        module.train(was_training)
        return {name: torch.cat(parts) for name, parts in found.items()}

    def _evaluate(self, module: nn.Module, batch: Batch, size: int, flip: bool) -> Outputs:
        images, sounds, count = batch["images"], batch["sounds"], len(batch["images"])
        if images.is_cuda:  # a compiled model sees one shape
            missing = (0, 0, 0, 0, 0, 0, 0, size - count)
            images, sounds = F.pad(images, missing), F.pad(sounds, missing)
        whole = {"both": (0, 0), "image": (len(images), 0), "sound": (0, len(images))}
        kinds = {
            "logits": whole[self.options.modalities],
            "image_logits": whole["image"],
            "sound_logits": whole["sound"],
        }
        views = [images, images.flip(-1)] if flip else [images]
        found: Outputs = {}
        for name, alone in kinds.items():
            made = [module(view, sounds, alone) for view in views]
            logits = torch.stack([each["logits"].float() for each in made])
            mean = logits.log_softmax(-1).logsumexp(0) - math.log(2) if flip else logits[0]
            found |= {name: mean[:count]}
            found |= {k: v[:count] for k, v in made[0].items() if not k.endswith("logits")}
        return found

    def measure(self, outputs: Outputs) -> dict[str, float]:
        """Return the numbers of a classification, and the accuracy with each modality alone.

        With a contrastive loss there is ``retrieval`` too; see ``retrieval``.
        """
        labels = outputs["labels"]
        measured = measure_logits(outputs["logits"], labels)
        for name in ("image", "sound"):
            measured[f"{name}_accuracy"] = accuracy(outputs[f"{name}_logits"], labels)
        if "image" in outputs:
            measured["retrieval"] = retrieval(outputs["image"], outputs["sound"], labels)
        return measured

    @torch.inference_mode()
    def pictures(self, module: nn.Module, data: DataSet, index: Tensor) -> dict[str, Picture]:
        """Return the images as the model sees them, and the spectrograms that it hears."""
        part = data.test[index.to(data.test.labels.device)]
        batches = list(self.eval_batches(part))
        images = torch.cat([batch["images"] for batch in batches])
        sounds = torch.cat([batch["sounds"] for batch in batches])
        names = tuple(data.class_names[int(label)] for label in part.labels[: len(images)])
        seen = Grid(
            title="Images",
            caption="Test images as the model sees them, with their noise.",
            columns=names,
            cells=self.to_pixels(images)[None].cpu(),
        )
        heard = Heat(
            title="Sounds",
            caption="Log-mel spectrograms of the sounds that belong to the images. The speakers are"
            " not those of the training.",
            columns=names,
            cells=sounds[:, 0].flip(1)[None].cpu(),
            x_label="time (16 ms)",
            y_label="frequency (mel)",
            colour_label="log energy, normalised",
        )
        return {"images": seen, "sounds": heard}


def retrieval(images: Tensor, sounds: Tensor, labels: Tensor) -> float:
    """Return the share of images whose most similar sound has their class: (N, E), (N, E), (N,).

    The sounds are those of at most ``RETRIEVED`` pairs, evenly spaced. Chance is the share of a
    class.
    """
    count = min(RETRIEVED, len(labels))
    chosen = torch.arange(count, device=labels.device) * len(labels) // count
    images, sounds, labels = images[chosen], sounds[chosen], labels[chosen]
    nearest = (images.float() @ sounds.float().mT).argmax(1)
    return (labels[nearest] == labels).double().mean().item()
