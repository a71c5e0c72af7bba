"""An image encoder and a text encoder with a joint space: the model of contrastive training.

Axes: B batch, C channels, H W pixels, L tokens of a caption, E width of the joint space.
"""

import math
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitcli.core.models.image_model import build_model
from vitcli.core.ops.backend import Linear
from vitcli.core.randomness import keyed_generator
from vitcli.core.spec import ExperimentSpec
from vitcli.plugins.clip.captions import KINDS, CaptionBook
from vitcli.plugins.clip.spec import ClipSpec
from vitcli.plugins.clip.text_encoder import TextEncoder
from vitcli.plugins.clip.tokens import NUM_SPECIAL, split_words

START_SCALE = 1 / 0.07
"""Initial factor of the similarities: the inverse of the temperature."""


def clip_spec(spec: ExperimentSpec) -> ClipSpec:
    return cast(ClipSpec, spec.task)


def caption_book(spec: ExperimentSpec) -> CaptionBook:
    if spec.data.class_names is None:
        raise ValueError("data.class_names must be set to write captions")
    return KINDS[clip_spec(spec).captions].book(spec.data.class_names)


class ImageTextModel(nn.Module):
    """An image encoder and a text encoder with a joint space.

    Two linear maps without bias and a learned logarithm of the scale, as in CLIP.
    """

    def __init__(self, spec: ExperimentSpec) -> None:
        super().__init__()
        task = clip_spec(spec)
        self.encoder = build_model(spec.model, spec.seed)
        words = None
        if task.captions != "folder":
            texts = (text for row in caption_book(spec).train for text in row)
            words = sorted({word for text in texts for word in split_words(text)})
        size = task.vocabulary_size - NUM_SPECIAL if words is None else len(words)
        self.text = TextEncoder(task, size)
        self.image_projection = Linear(self.encoder.num_features, task.joint_dim, bias=False)
        self.text_projection = Linear(task.text_dim, task.joint_dim, bias=False)
        self.logit_scale = nn.Parameter(torch.tensor(math.log(START_SCALE)))
        self.text.initialise(spec.seed)
        for name in ("image_projection", "text_projection"):
            layer = self.get_submodule(name)
            assert isinstance(layer, nn.Linear)
            if not layer.weight.is_meta:
                generator = keyed_generator("init", spec.seed, f"{name}.weight")
                nn.init.normal_(layer.weight, std=layer.in_features**-0.5, generator=generator)
        if words is not None and not self.text.reads_bytes:
            self.text.set_vocabulary(words)

    def encode_images(self, images: Tensor) -> Tensor:
        """Return unit vectors: (B, C, H, W) -> (B, E) fp32."""
        return F.normalize(self.image_projection(self.encoder.features(images)).float(), dim=-1)

    def encode_texts(self, tokens: Tensor) -> Tensor:
        """Return unit vectors: (B, L) int64 -> (B, E) fp32."""
        return F.normalize(self.text_projection(self.text(tokens)).float(), dim=-1)

    def forward(self, images: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return the unit vectors of images and of their captions, each (B, E)."""
        return self.encode_images(images), self.encode_texts(tokens)
