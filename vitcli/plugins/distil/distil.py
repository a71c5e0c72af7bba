"""Knowledge distillation: a student learns from the labels and from a trained teacher.

Axes: B batch, C channels, H W pixels, N tokens, D width, h w grid, K classes.
"""

import math
from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitcli.core.data.batches import Batch, EpochPlan, rows_on_device
from vitcli.core.data.source import DataSet
from vitcli.core.models.image_model import ImageModel, build_model, hooked
from vitcli.core.models.vit import VisionTransformer
from vitcli.core.nn.init import xavier_normal
from vitcli.core.objectives.classify import Classify
from vitcli.core.ops.backend import Linear
from vitcli.core.randomness import keyed_generator, seed_of
from vitcli.core.spec import ExperimentSpec, VitSpec
from vitcli.core.spec.rows import make
from vitcli.core.spec.slots import HEADS
from vitcli.core.torch_use import autocast_to
from vitcli.plugins.distil.spec import DistilSpec, TeacherSpec


def distil_spec(spec: ExperimentSpec) -> DistilSpec:
    return cast(DistilSpec, spec.task)


class Teacher:
    """A model in eval mode whose outputs are computed without gradients.

    It takes the student's images, and changes their normalisation and size to its own. Its weights
    are random until they are loaded into ``model``; on ``meta``, there are only shapes.
    """

    def __init__(self, spec: ExperimentSpec, device: torch.device) -> None:
        asked = distil_spec(spec).teacher or TeacherSpec()
        if device.type == "meta":
            with device:
                model = build_model(asked.model or spec.model)
        else:
            seed = seed_of("teacher", spec.seed)
            model = build_model(asked.model or spec.model, seed).to(device)
        self.model = model.eval().requires_grad_(False)
        ours, theirs = ((each.mean, each.std) for each in (spec.data, asked))
        self._change: tuple[Tensor, Tensor] | None = None
        """What images are multiplied by, and what is then added; None changes nothing."""
        if ours != theirs and all((*ours, *theirs)):
            (mean, std), (wanted, spread) = (
                torch.tensor(pair, device=device)[..., None, None] for pair in (ours, theirs)
            )
            self._change = std / spread, (mean - wanted) / spread

    def _prepare(self, images: Tensor) -> Tensor:
        if self._change is not None:
            images = images * self._change[0] + self._change[1]
        size = self.model.image_shape[1:]
        if images.shape[-2:] != size:
            images = F.interpolate(images, size, mode="bilinear", align_corners=False)
        return images

    @torch.no_grad()
    def logits(self, images: Tensor) -> Tensor:
        """Return the teacher's logits in fp32: (B, C, H, W) -> (B, K)."""
        return self.model(self._prepare(images)).float()

    @torch.no_grad()
    def maps(self, images: Tensor, names: Sequence[str]) -> list[Tensor]:
        """Return the outputs of parts of the teacher as maps in fp32, each (B, D, h, w)."""
        run: Any = getattr(self.model, "forward_features", self.model)
        with hooked({name: self._part(name) for name in names}) as found:
            run(self._prepare(images))
        ratio = self.model.image_shape[1] / self.model.image_shape[2]
        prefix = getattr(self.model, "num_prefix_tokens", 0)
        maps = (as_map(found.get(name), ratio, prefix, name).float() for name in names)
        form = getattr(getattr(self.model, "net", None), "output_fmt", "")  # of timm
        return [
            each.movedim(-1, 1) if form == "NHWC" and found[name].ndim == 4 else each
            for name, each in zip(names, maps, strict=True)
        ]

    def _part(self, name: str) -> nn.Module:
        try:
            return self.model.get_submodule(name)
        except AttributeError:
            known = [each for each, _ in self.model.named_modules() if each.count(".") <= 1]
            raise ValueError(
                f"task.teacher_layers: the teacher has no part {name!r}, only"
                f" {', '.join(filter(None, known))}"
            ) from None


def as_map(output: Tensor | None, ratio: float, prefix: int, name: str) -> Tensor:
    """Return a map (B, D, h, w), or tokens (B, N, D) without their prefix, as a map.

    ``ratio`` is the height of the image divided by its width.
    """
    if isinstance(output, Tensor) and output.ndim == 4:
        return output
    if isinstance(output, Tensor) and output.ndim == 3:
        tokens = output[:, prefix:]
        height = round(math.sqrt(tokens.shape[1] * ratio))
        if height and tokens.shape[1] % height == 0:
            return tokens.mT.unflatten(2, (height, -1))
    raise ValueError(f"task.teacher_layers: the output of {name!r} is no map of the image")


class TokenStudent(VisionTransformer):
    """A ViT whose first register is a distillation token with a head of its own.

    Touvron et al. 2021, https://arxiv.org/abs/2012.12877. The prediction is the mean of the
    probabilities of both heads.
    """

    second_reader = "distillation"

    def __init__(self, spec: VitSpec) -> None:
        super().__init__(spec)
        self.head_dist = make(HEADS[spec.head], spec.embed_dim, self.num_classes)

    @property
    def head_names(self) -> set[str]:
        return super().head_names | {f"head_dist.{n}" for n, _ in self.head_dist.named_parameters()}

    def pool_weights(self, images: Tensor) -> Tensor:
        """Return the share of each token, (B, N); half of it is the distillation head's."""
        weights = super().pool_weights(images) / 2
        weights[:, self.num_prefix_tokens - self.spec.reg_tokens] += 0.5
        return weights

    def both_heads(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits of the head and of the distillation head, each (B, K)."""
        first = self.num_prefix_tokens - self.spec.reg_tokens
        return super().forward_head(tokens), self.head_dist(tokens[:, first])

    def forward_head(self, tokens: Tensor) -> Tensor:
        """Return the logarithm of the mean of both probabilities: (B, N, D) -> (B, K)."""
        one, other = (logits.float().log_softmax(-1) for logits in self.both_heads(tokens))
        return torch.logaddexp(one, other) - math.log(2)

    def forward(self, images: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(images))


def drop_projections(module: nn.Module, weights: dict[str, Tensor], *_: Any) -> None:
    for name in [name for name in weights if name.startswith("projections.")]:
        del weights[name]


class Student(nn.Module):
    """The model to train, and the projections of its layers to the widths of the teacher's."""

    encoder: ImageModel

    def __init__(self, spec: ExperimentSpec) -> None:
        super().__init__()
        self.task = distil_spec(spec)
        if self.task.kind == "token":
            assert isinstance(spec.model, VitSpec)
            self.encoder = TokenStudent(spec.model).initialise(spec.seed)
        else:
            self.encoder = build_model(spec.model, spec.seed)
        asked = self.task.teacher
        if self.task.kind == "features" and asked and asked.sha256 and not asked.model:
            # The code of the teacher is not loaded, so the student can only be measured.
            self.register_load_state_dict_pre_hook(drop_projections)
        elif self.task.kind == "features":
            self.projections = self._make_projections(spec)

    def _make_projections(self, spec: ExperimentSpec) -> nn.ModuleList:
        meta, shape = torch.device("meta"), self.encoder.image_shape
        images = torch.empty(2, *shape, device=meta)
        maps = Teacher(spec, meta).maps(images, self.task.teacher_layers)
        assert isinstance(spec.model, VitSpec)
        made = nn.ModuleList(Linear(spec.model.embed_dim, each.shape[1]) for each in maps)
        if not made[0].weight.is_meta:
            xavier_normal(made, partial(keyed_generator, "init", spec.seed, "projections"))
        return made

    def forward(self, images: Tensor, trains: bool = False) -> Tensor | list[Tensor]:
        """Return the logits (B, K); in a training also those of the distillation token, or maps.

        The maps (B, D, h, w) are those of the layers, projected.
        """
        if not trains:
            return self.encoder(images)
        encoder = self.encoder
        if isinstance(encoder, TokenStudent):
            return [*encoder.both_heads(encoder.forward_features(images))]
        if self.task.kind == "logits":
            return [encoder(images)]
        assert isinstance(encoder, VisionTransformer)
        logits, found = encoder.forward_with_tokens(images, self.task.layers)
        projected = (part(tokens) for part, tokens in zip(self.projections, found, strict=True))
        return [logits, *(tokens.mT.unflatten(2, encoder.grid_size) for tokens in projected)]


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

    minimises_cross_entropy = False
    encoder_name = "encoder"
    module: Student
    make_module = Student

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
