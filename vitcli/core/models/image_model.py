"""The base class of all models. Axes: B batch, C channels, H W pixels, K classes."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self

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


@contextmanager
def hooked(places: Mapping[Any, nn.Module]) -> Iterator[dict[Any, Tensor]]:
    """Collect the output of each module, by its key, while the block runs."""
    found: dict[Any, Tensor] = {}
    handles = [
        module.register_forward_hook(lambda _, args, out, key=key: found.update({key: out}))
        for key, module in places.items()
    ]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


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

    library_prefix: ClassVar[str] = ""
    """What the names of its tensors begin with, if it is a model of another library."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        if spec.img_size is None or spec.in_chans is None or spec.num_classes is None:
            raise ValueError("img_size, in_chans and num_classes must be set to build a model")
        self.spec = spec
        self.image_shape = (spec.in_chans, *spec.img_size)
        self.num_classes = spec.num_classes
        self.grad_checkpointing = False

    def init_weights(self, draws: Draws) -> None:
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

    @property
    def library_call(self) -> tuple[str, dict[str, Any]] | None:
        """Return the function of another library that builds the model, and its arguments."""
        return None

    def features(self, images: Tensor) -> Tensor:
        """Return the pooled features that enter the head: (B, C, H, W) -> (B, num_features)."""
        raise NotImplementedError


class MappedModel(ImageModel):
    """Base class of the models of which ``inspect`` draws maps.

    Axes: N tokens (prefix first), D embed_dim, h num_heads, gh gw patch grid.
    """

    if TYPE_CHECKING:  # attributes or properties of the subclasses

        @property
        def blocks(self) -> Any:
            """Return the blocks whose attention can be captured: all of the model, or none."""

        @property
        def num_heads(self) -> int: ...

        @property
        def num_prefix_tokens(self) -> int: ...

        @property
        def grid_size(self) -> tuple[int, int]: ...

        @property
        def pool_name(self) -> str:
            """Return the row of ``POOLS`` that is like the pooling of the tokens."""

        @property
        def cls_token(self) -> Tensor | None:
            """Return the CLS token, if the head reads it."""

        @property
        def has_attention_weights(self) -> bool: ...

    @property
    def reader(self) -> str:
        """Return the name of what the head reads; an own pooling may read CLS and patches."""
        if self.cls_token is None:
            return "the pooled patches"
        return "CLS" if self.pool_name == "cls" else "the pooled tokens"

    def pool_weights(self, images: Tensor) -> Tensor:
        """Return the share of each token in the pooling: (B, N), rows sum to 1."""
        raise NotImplementedError

    def attention_weights(
        self, images: Tensor, layers: Sequence[int] | None = None
    ) -> dict[int, Tensor]:
        """Return the attention weights (B, h, N, N) of some layers, counted from 0, or of all."""
        return self.forward_with_weights(images, layers)[1]

    def forward_with_weights(
        self, images: Tensor, layers: Sequence[int] | None = None
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Return the logits (B, K), and the attention weights that they depend on, by layer."""
        raise NotImplementedError

    def forward_with_features(self, images: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Return the logits (B, K), and the features that they depend on.

        The features are the tokens (B, N, D) that enter the attention after ``layer`` blocks, or
        the head after the last block.
        """
        raise NotImplementedError

    def by_place(self, features: Tensor) -> Tensor:
        """Return features by their place in the picture: (B, gh, gw, D)."""
        return features[:, self.num_prefix_tokens :].unflatten(1, self.grid_size)


def build_model(spec: ModelSpec, seed: int | None = None) -> ImageModel:
    """Return the model with initial weights; without a seed, torch's global generator draws one."""
    model: ImageModel = make(FAMILIES[spec.family], spec)
    return model.initialise(seed)
