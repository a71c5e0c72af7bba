"""What every family of models has in common. Axes: B batch, C channels, H W pixels, K classes."""

from collections.abc import Iterable
from functools import partial
from typing import Self, TypeVar

import torch
from torch import Tensor, nn

from vitcli.core.nn.block import recomputed
from vitcli.core.randomness import Draws, keyed_generator
from vitcli.core.spec import ModelSpec

T = TypeVar("T")


class ImageModel(nn.Module):
    """Images (B, C, H, W), normalised, -> logits (B, K).

    Its last layer is called ``head``, so that weights can move to a model with other classes.
    Set ``grad_checkpointing`` to recompute blocks in the backward pass, where there are any.
    """

    head: nn.Module
    no_maps: str | None = "has no attention"
    """Why there are no maps of the attention over the whole picture; None where there are."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        if spec.img_size is None or spec.in_chans is None or spec.num_classes is None:
            raise ValueError("img_size, in_chans and num_classes must be set to build a model")
        self.spec = spec
        self.image_shape = (spec.in_chans, *spec.img_size)
        self.num_classes = spec.num_classes
        self.grad_checkpointing = False

    def init_weights(self, draws: Draws) -> None:
        """Give every tensor that starts at random its first value."""
        raise NotImplementedError

    def initialised(self, seed: int | None = None) -> Self:
        """The model with new weights, each a function of (seed, name of the parameter).

        Without a seed, torch's global generator chooses one. A model on the device ``meta`` has no
        weights.
        """
        if next(self.parameters()).is_meta:
            return self
        if seed is None:
            seed = int(torch.randint(2**62, ()))
        self.init_weights(partial(keyed_generator, "init", seed))
        return self

    def check_images(self, images: Tensor) -> None:
        """Refuse what the model was not built for.

        Raises:
            ValueError: The images have another size or other channels.
        """
        if images.shape[1:] != self.image_shape:
            wanted, got = ("x".join(map(str, s)) for s in (self.image_shape, images.shape[1:]))
            raise ValueError(f"the model takes images of {wanted} (channels first), got {got}")

    def run_blocks(self, blocks: Iterable[nn.Module], tokens: T) -> T:
        """One block after the other, recomputed in the backward pass where that is wanted."""
        for block in blocks:
            if self.grad_checkpointing and self.training:
                tokens = recomputed(block, tokens)
            else:
                tokens = block(tokens)
        return tokens
