"""Knowledge distillation: a student learns from the labels and from a trained teacher.

Axes: B batch, C channels, H W pixels, D width, h w grid, K classes.
"""

from collections.abc import Sequence
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitcli.core.data.batches import Batch, EpochPlan, rows_on_device
from vitcli.core.data.source import DataSet
from vitcli.core.models.image_model import ImageModel
from vitcli.core.objectives.classify import Classify
from vitcli.core.spec import ExperimentSpec
from vitcli.core.torch_use import autocast_to
from vitcli.plugins.distil.model import Student
from vitcli.plugins.distil.teacher import Teacher, distil_spec

TEACHER = "teacher"
"""Name of the table with the teacher's logits."""
EPS = 1e-7
"""Added to the standard deviation of logits, as in the code of Sun et al."""


def standardized(logits: Tensor) -> Tensor:
    """Return logits (B, K) with mean 0 and standard deviation 1 over the classes."""
    deviation = logits.std(-1, keepdim=True) + EPS
    return (logits - logits.mean(-1, keepdim=True)) / deviation


def soft_loss(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Return T^2 times the Kullback-Leibler divergence of softened probabilities, a mean over B.

    The factor keeps the size of the gradient when T changes. Hinton et al. 2015,
    https://arxiv.org/abs/1503.02531
    """
    wanted = (teacher / temperature).log_softmax(-1)
    found = (student / temperature).log_softmax(-1)
    return temperature**2 * F.kl_div(found, wanted, reduction="batchmean", log_target=True)


def feature_loss(student: Sequence[Tensor], teacher: Sequence[Tensor]) -> Tensor:
    """Return the mean squared error of maps (B, D, h, w), summed over the layers.

    The student's maps are resized to the teacher's. Li et al. 2022,
    https://arxiv.org/abs/2207.10026
    """
    total = teacher[0].new_zeros(())
    for maps, wanted in zip(student, teacher, strict=True):
        maps, size = maps.float(), wanted.shape[-2:]
        if maps.shape[-2:] != size:
            maps = F.interpolate(maps, size, mode="bilinear", align_corners=False)
        total = total + F.mse_loss(maps, wanted)
    return total


class Distil(Classify):
    """Cross-entropy with the labels, together with a loss that compares student and teacher.

    The teacher sees the augmented images of the step. Its outputs therefore are functions of
    (seed, epoch, image), and nothing of it is trained, averaged or saved. With
    ``data.augment.copies``, it labels each copy of an image only once, before the first epoch that
    needs it; a resumed training labels the copies that it still needs again.

    Logits: Hinton et al. 2015, https://arxiv.org/abs/1503.02531, and standardised by Sun et al.
    2024, https://arxiv.org/abs/2403.01427. A distillation token that learns the teacher's most
    likely class: Touvron et al. 2021, https://arxiv.org/abs/2012.12877. Features: Li et al. 2022,
    https://arxiv.org/abs/2207.10026
    """

    encoder_name = "encoder"
    module: Student

    @classmethod
    def make_module(cls, spec: ExperimentSpec) -> nn.Module:
        return Student(spec)

    @cached_property
    def _teacher(self) -> Teacher:
        return Teacher(self.spec, next(self.module.parameters()).device)

    @property
    def teacher(self) -> ImageModel:
        return self._teacher.model

    @cached_property
    def _labels(self) -> dict[int, Tensor]:
        return {}  # labelled copy of the training images -> the teacher's logits, (N, K) in fp32

    @property
    def labelled_copies(self) -> int | None:
        is_whole = self.spec.train.limit_batches is None
        has_logits = distil_spec(self.spec).kind != "features"
        return self.spec.data.augment.copies if is_whole and has_logits else None

    def rows(self, data: DataSet, epoch: int) -> EpochPlan:
        """Return the rows of an epoch; of labelled copies also the teacher's logits (N, K)."""
        rows, copies = super().rows(data, epoch), self.labelled_copies
        if copies is None:
            return rows
        copy = epoch % copies
        if copy not in self._labels:
            # In the order of this epoch also after a resume, because batches change the last bits.
            own = rows if epoch == copy else super().rows(data, copy)
            self._labels[copy] = self._label(data, own)
        return rows | {TEACHER: self._labels[copy][rows["index"]]}

    def _label(self, data: DataSet, rows: EpochPlan) -> Tensor:
        device, size = data.train.pixels.device, self.spec.train.batch_size
        tables = rows_on_device(rows, device)
        found = torch.empty(len(data.train), data.num_classes, device=device)
        for start in range(0, len(found), size):
            part = {name: table[start : start + size] for name, table in tables.items()}
            with autocast_to(device, self.autocast):
                logits = self._teacher.logits(super().make_batch(data, part)["images"])
            found[part["index"]] = logits
        return found.cpu()

    def make_batch(self, data: DataSet, rows: EpochPlan) -> Batch:
        """Return the batch; of labelled copies also ``teacher``, the teacher's logits (B, K)."""
        kept = {TEACHER: rows[TEACHER]} if TEACHER in rows else {}
        return super().make_batch(data, rows) | kept

    def check_data(self, data: DataSet) -> None:
        """Refuse a teacher of other classes or channels than those of the data set."""
        task, own = distil_spec(self.spec), self.spec.data.class_names
        teacher = (task.teacher and task.teacher.model) or self.spec.model
        names = task.teacher.class_names if task.teacher else None
        differs = own is not None and names is not None and names != own
        if task.kind != "features" and (differs or teacher.num_classes != data.num_classes):
            raise ValueError(
                "task.teacher: it knows other classes than the data set has; only task.kind"
                " 'features' does not compare classes"
            )
        if teacher.in_chans != data.in_chans:
            raise ValueError(
                f"task.teacher: it takes images of {teacher.in_chans} channels, the data set"
                f" has {data.in_chans}"
            )
        if task.standardize and data.num_classes < 3:
            raise ValueError(
                "task.standardize: the standardised logits of fewer than three classes say only"
                " which one is largest; set it to false"
            )

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Return the loss, the accuracy of the student's own head and the teacher's part."""
        task, images = distil_spec(self.spec), batch["images"]
        logits, *others = self.network(images, True)
        found = self.class_losses(logits.float(), batch["targets"])
        if task.kind == "features":
            distance = feature_loss(others, self._teacher.maps(images, task.teacher_layers))
            loss = found["loss"] + task.feature_weight * distance
        else:
            wanted = batch[TEACHER] if TEACHER in batch else self._teacher.logits(images)
            if task.kind == "token":
                distance = F.cross_entropy(others[0].float(), wanted.argmax(-1))
            else:
                pair = logits.float(), wanted
                ours, theirs = map(standardized, pair) if task.standardize else pair
                distance = soft_loss(ours, theirs, task.temperature)
            loss = (1 - task.share) * found["loss"] + task.share * distance
        return found | {"loss": loss, "distillation": distance.detach()}
