"""What distillation trains. Axes: B batch, C channels, H W pixels, N tokens, D width, K classes."""

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from vitcli.core.models.image_model import ImageModel, build_model
from vitcli.core.models.vit import VisionTransformer
from vitcli.core.nn.init import xavier_normal
from vitcli.core.ops.backend import Linear
from vitcli.core.randomness import keyed_generator
from vitcli.core.spec import ExperimentSpec, VitSpec
from vitcli.core.spec.rows import make
from vitcli.core.spec.slots import HEADS
from vitcli.plugins.distil.teacher import Teacher, distil_spec


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
        """Return the logits (B, K); in a training, what the losses need.

        That is a list: the logits, and those of the distillation token, or the projected maps
        (B, D, h, w) of the layers.
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
