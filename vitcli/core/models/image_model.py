"""The base class of all models. Axes: B batch, C channels, H W pixels, K classes."""

import re
from collections.abc import Sequence
from functools import partial
from typing import Self

import torch
from torch import Tensor, nn

from vitcli.core.randomness import Draws, keyed_generator
from vitcli.core.spec import FAMILIES, ModelSpec
from vitcli.core.spec.rows import make


def refuse_bytes(images: Tensor) -> None:
    if images.dtype == torch.uint8:
        raise ValueError("the model takes normalised images, got uint8; use normalize(pixels)")


BLOCK = re.compile(r"(?:.*\.)?blocks\.\d+\.")


def count_layers(names: Sequence[str]) -> list[int]:
    """Return the layer of each parameter of a model, whose names are in the order of its layers.

    Layer i is block i, counted from 1. What comes before the first block is layer 0. What comes
    between blocks belongs to the block after it, and norm and head to a layer of their own.
    """
    found: list[int] = []
    seen: list[str] = []
    for name in names:
        match = BLOCK.match(name)
        if match and match[0] not in seen:
            seen.append(match[0])
        found.append(len(seen) + bool(seen and not match))
    return found


def chosen_layers(layers: Sequence[int] | None, depth: int) -> list[int]:
    """Return the layers of a model, counted from 0, all by default."""
    for index in layers or ():
        if not -depth <= index < depth:
            raise ValueError(f"layer {index} is out of range: the model has {depth} layers")
    return [i % depth for i in (range(depth) if layers is None else layers)]


class ImageModel(nn.Module):
    """Base class of models: normalised images (B, C, H, W) -> logits (B, K).

    The last layer is called ``head``, so that weights can be moved to a model with other classes.
    Set ``grad_checkpointing`` to recompute the blocks in the backward pass.
    """

    head: nn.Module
    no_maps: str | None = "has no attention"
    """Reason why the model has no attention maps of the whole picture; None if it has them."""
    second_reader: str | None = None
    """Name of the first register if the prediction is also half its own; else None."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        if spec.img_size is None or spec.in_chans is None or spec.num_classes is None:
            raise ValueError("img_size, in_chans and num_classes must be set to build a model")
        self.spec = spec
        self.image_shape = (spec.in_chans, *spec.img_size)
        self.num_classes = spec.num_classes
        self.grad_checkpointing = False

    def init_weights(self, draws: Draws) -> None:
        """Fill all tensors that have random initial values."""
        raise NotImplementedError

    def initialise(self, seed: int | None = None) -> Self:
        """Fill the model with new weights and return it.

        Each weight depends only on the seed and the name of its parameter. Without a seed, torch's
        global generator draws a seed. A model on the device ``meta`` has no weights and is
        unchanged.
        """
        if next(self.parameters()).is_meta:
            return self
        if seed is None:
            seed = int(torch.randint(2**62, ()))
        self.init_weights(partial(keyed_generator, "init", seed))
        return self

    def check_images(self, images: Tensor) -> None:
        refuse_bytes(images)
        if images.shape[1:] != self.image_shape:
            wanted, got = ("x".join(map(str, s)) for s in (self.image_shape, images.shape[1:]))
            raise ValueError(f"the model takes images of {wanted} (channels first), got {got}")

    @property
    def head_names(self) -> set[str]:
        head = {id(each) for each in self.head.parameters()}
        return {name for name, each in self.named_parameters() if id(each) in head}

    def parameter_layers(self) -> list[int]:
        """Return the layer of each parameter, for decayed learning rates and frozen layers."""
        return count_layers([name for name, _ in self.named_parameters()])

    @property
    def num_features(self) -> int:
        """Return the number of features of an image: the width of the head's input."""
        first = next(part for part in self.head.modules() if isinstance(part, nn.Linear))
        return first.in_features

    def features(self, images: Tensor) -> Tensor:
        """Return the pooled features that enter the head: (B, C, H, W) -> (B, num_features)."""
        raise NotImplementedError


def build_model(spec: ModelSpec, seed: int | None = None) -> ImageModel:
    """Return the model with initial weights; without a seed, torch's global generator draws one."""
    model: ImageModel = make(FAMILIES[spec.family], spec)
    return model.initialise(seed)
