"""DINO: self-distillation with no labels. Caron et al. 2021, https://arxiv.org/abs/2104.14294

Axes: B batch, V views (global ones first), G global views, D features, K prototypes.
"""

import math
from collections.abc import Mapping
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitcli.core import ranks
from vitcli.core.data.batches import Batch
from vitcli.core.models.image_model import build_model
from vitcli.core.randomness import Draws, keyed_generator
from vitcli.core.spec import ExperimentSpec, ModelSpec
from vitcli.core.torch_use import without_autocast
from vitcli.plugins.dino.spec import DinoSpec
from vitcli.plugins.views.view_task import Projector, ViewTask, all_features

DROPS = ("drop_path", "attn_drop", "proj_drop", "pos_drop")
UNIFORM, ONE_MODE = 0.985, 0.2
"""Limits of the two entropies, as shares of log K, beyond which the outputs have collapsed."""


class DinoHead(nn.Module):
    """Features (B, D) -> cosines with the prototypes (B, K), in fp32.

    The last layer is weight-normalised with a gain of 1, so its outputs are cosines.
    """

    def __init__(self, num_features: int, task: DinoSpec, draws: Draws) -> None:
        super().__init__()
        widths = (num_features, task.hidden_dim, task.hidden_dim, task.bottleneck_dim)
        self.projector = Projector(widths, batch_norm=task.head_norm == "batch")
        self.projector.initialise(draws)
        shape = (task.num_prototypes, task.bottleneck_dim)
        self.prototypes = nn.Parameter(torch.randn(shape, generator=draws("prototypes")))

    def forward(self, features: Tensor, learns: Tensor | None = None) -> Tensor:
        """``learns`` scales the gradient of the prototypes: 0 freezes them, 1 trains them."""
        found = self.projector(features)
        with without_autocast(found.device):
            weight: Tensor = self.prototypes
            if learns is not None:
                weight = torch.lerp(weight.detach(), weight, learns)
            return F.linear(F.normalize(found.float(), dim=-1), F.normalize(weight, dim=-1))


class DinoNetwork(nn.Module):
    """An encoder and a head: the student, or the teacher."""

    def __init__(self, model: ModelSpec, task: DinoSpec, seed: int) -> None:
        super().__init__()
        self.encoder = build_model(model, seed)
        draws = partial(keyed_generator, "init", seed, "head")
        self.head = DinoHead(self.encoder.num_features, task, draws)

    def forward(
        self, images: Tensor, local: Tensor | None = None, learns: Tensor | None = None
    ) -> Tensor:
        """Return the cosines (B, V, K) of all views. Batch norm sees all views together."""
        features = all_features(self.encoder, images, local)
        return self.head(features.flatten(0, 1), learns).unflatten(0, features.shape[:2])


class DinoModule(nn.Module):
    """Student, teacher and centre. The teacher starts as a copy, without any dropout."""

    center: Tensor
    batch_center: Tensor
    momentum: Tensor

    def __init__(self, spec: ExperimentSpec) -> None:
        super().__init__()
        task, model = cast(DinoSpec, spec.task), spec.model
        self.student = DinoNetwork(model, task, spec.seed)
        self.student.encoder.grad_checkpointing = spec.train.grad_checkpointing
        calm = {name: 0.0 for name in DROPS if name in type(model).model_fields}
        self.teacher = DinoNetwork(model.replace(**calm), task, spec.seed).requires_grad_(False)
        self.teacher.load_state_dict(self.student.state_dict())
        for part in self.teacher.modules():  # own code may have dropout of its own
            if isinstance(part, nn.modules.dropout._DropoutNd):
                part.p = 0.0
        self.register_buffer("center", torch.zeros(task.num_prototypes))
        # The next two are written and read within one step.
        self.register_buffer("batch_center", torch.zeros(task.num_prototypes), persistent=False)
        self.register_buffer("momentum", torch.zeros(()), persistent=False)

    def forward(
        self, images: Tensor, local: Tensor | None, learns: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the cosines of the student (B, V, K) and those of the teacher (B, G, K)."""
        with torch.no_grad():
            teacher = self.teacher(images)
        return self.student(images, local, learns), teacher


class Dino(ViewTask):
    """Cross-entropy of the student's output for a view with the teacher's for a global view.

    Other tasks start from the teacher's encoder, as in the paper: the average is better than the
    student throughout the training. Deviations: the weight decay is constant (the paper raises it
    from 0.04 to 0.4), because the optimiser's settings do not depend on the step; the gradient of
    the prototypes is scaled by 0 while they are frozen, so weight decay still shortens them, which
    changes nothing because they are normalised.
    """

    encoder_name, encoder_copies = "teacher.encoder", ("student.encoder",)
    module: DinoModule
    make_module = DinoModule

    @property
    def fields(self) -> DinoSpec:
        return cast(DinoSpec, self.spec.task)

    def schedule(self, step: int, steps_per_epoch: int) -> dict[str, float]:
        task, epoch = self.fields, step / steps_per_epoch
        num_steps = self.spec.train.epochs * steps_per_epoch
        first, last = task.warmup_teacher_temperature, task.teacher_temperature
        warm = min(1.0, epoch / task.teacher_warmup_epochs) if task.teacher_warmup_epochs else 1.0
        return {
            "temperature": first + (last - first) * warm,
            "momentum": cosine_to_one(task.teacher_momentum, step / max(1, num_steps)),
            "learns": float(epoch >= task.freeze_prototypes_epochs),
        }

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Return the loss in nats and the teacher's two entropies, as shares of log K."""
        module = self.module
        student, teacher = self.network(batch["images"], batch.get("local"), batch["learns"][0])
        targets = ((teacher - module.center) / batch["temperature"][0]).softmax(-1)
        with without_autocast(targets.device):
            loss = cross_view_loss(student / self.fields.student_temperature, targets)
        with torch.no_grad():
            module.batch_center.copy_(ranks.mean(teacher.mean((0, 1))))
            module.momentum.copy_(batch["momentum"][0])
            each, mean = entropies(targets)
        return {"loss": loss, "sample_entropy": each, "batch_entropy": mean}

    @torch.no_grad()
    def after_step(self) -> None:
        """Move the teacher towards the student and the centre towards the batch's mean."""
        module = self.module
        teacher: list[Tensor] = [*module.teacher.parameters()]
        student: list[Tensor] = [*module.student.parameters()]
        changes = torch._foreach_sub(student, teacher)
        torch._foreach_mul_(changes, 1 - module.momentum)
        torch._foreach_add_(teacher, changes)
        module.center.lerp_(module.batch_center, 1 - self.fields.center_momentum)

    def diagnose(self, numbers: Mapping[str, float]) -> str:
        if numbers["sample_entropy"] > UNIFORM:
            return (
                "collapse: the teacher's output is nearly uniform for every image; lower"
                " task.teacher_temperature, or set task.head_norm to batch"
            )
        if numbers["batch_entropy"] < ONE_MODE:
            return (
                "collapse: the teacher's output is nearly the same peak for all images; lower"
                " task.center_momentum, or raise task.teacher_temperature"
            )
        return ""


def cosine_to_one(first: float, progress: float) -> float:
    """Return a share that rises from ``first`` to 1 in half a period of a cosine."""
    return 1 - (1 - first) * (math.cos(math.pi * progress) + 1) / 2


def cross_view_loss(student: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy over all pairs of a global view and another view.

    The first G views of the student are the teacher's views; a view is not paired with itself, so
    there are G (V - 1) pairs: 2V - 2 with two global views.
    (B, V, K) logits, (B, G, K) probabilities -> scalar.
    """
    batch, num_global = targets.shape[:2]
    scores = torch.einsum("bgk,bvk->gv", targets, student.log_softmax(-1)) / batch
    num_pairs = num_global * (student.shape[1] - 1)
    return (scores.diagonal().sum() - scores.sum()) / num_pairs


def entropies(targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean entropy of each output and the entropy of their mean, in shares of log K.

    (..., K) probabilities. Near (1, 1) the outputs are uniform, near (0, 0) all have the same peak.
    A healthy training has a low first and a high second number.
    """
    flat = targets.flatten(0, -2)
    each = -torch.xlogy(flat, flat).sum(-1).mean()
    whole = ranks.mean(flat.mean(0))
    mean = -torch.xlogy(whole, whole).sum()
    return each / math.log(flat.shape[-1]), mean / math.log(flat.shape[-1])
