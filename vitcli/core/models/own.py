"""Models from a user's own code, as everything else sees a model."""

from collections.abc import Callable
from copy import deepcopy
from operator import attrgetter
from typing import Self

import torch
from torch import Tensor, nn

from vitcli.core.models.image_model import ImageModel
from vitcli.core.randomness import Draws, seed_of, seed_step
from vitcli.core.spec import ModelSpec

CLOSE = 1e-4
"""Largest difference of two computations of one output, as a share of the largest output."""


def logits_of(module: nn.Module, images: Tensor, num_classes: int) -> Tensor:
    """Return the logits (B, K) of a module of one's own; a ValueError says what it returned."""
    logits: Tensor = module(images)
    shape = logits.shape if isinstance(logits, Tensor) else None
    wanted = len(images), num_classes
    if shape != wanted:
        kind = type(module).__name__
        got = type(logits).__name__ if shape is None else tuple(shape)
        raise ValueError(f"{kind} must return logits of the shape {wanted}, returned {got}")
    return logits


class GivenModel(ImageModel):
    """Any module that maps normalised images (B, C, H, W) to logits (B, K), with shared weights."""

    no_maps = "is a module of your own, which states no attention weights"

    def __init__(self, spec: ModelSpec, module: nn.Module) -> None:
        super().__init__(spec)
        self.module = module

    def forward(self, images: Tensor) -> Tensor:
        return logits_of(self.module, images, self.num_classes)


class OwnModel(ImageModel):
    """A module whose last layer is its attribute ``head``: images (B, C, H, W) -> logits (B, K).

    The head is taken out of the module, which then returns the features of an image, (B, D).
    ``build`` takes ``img_size`` (height, width), ``in_chans``, ``num_classes`` and the options of
    these names.
    """

    no_maps = "is your own model, which states no attention weights"

    def __init__(
        self, spec: ModelSpec, build: Callable[..., nn.Module], options: tuple[str, ...]
    ) -> None:
        super().__init__(spec)
        self._build, self._options = build, options
        self._fill()

    def _fill(self) -> None:
        names = ("img_size", "in_chans", "num_classes", *self._options)
        net = self._build(**{name: getattr(self.spec, name) for name in names})
        head = getattr(net, "head", None)
        if not isinstance(head, nn.Module):
            raise ValueError(
                f"family {self.spec.family!r} needs an attribute head: the layer that makes the"
                " logits, called last"
            )
        self.head, self.net = head, net
        self.own_part = "model", type(net)
        net.head = nn.Identity()

    def init_weights(self, draws: Draws) -> None:
        """Do nothing: the module draws its own weights, in ``initialise``."""

    def initialise(self, seed: int | None = None) -> Self:
        """Build the module again, with torch's global generator seeded for this block."""
        if seed is not None and not next(self.parameters()).is_meta:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed_of("init", seed))
                self._fill()
        return self

    def features(self, images: Tensor) -> Tensor:
        self.check_images(images)
        found: Tensor = self.net(images)
        return found

    def forward_features(self, images: Tensor) -> Tensor:
        return self.features(images)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(images))
        return logits

    def check_head(self, images: Tensor) -> None:
        """Refuse a module that does more than its head does last, which would be left out.

        With a head of other, large weights, the module as it was written must return what is
        trained: in both modes, and with the same random numbers.
        """
        kind = type(self.net).__name__
        if not isinstance(returned := self.net(images), Tensor):
            what = type(returned).__name__
            raise ValueError(f"{kind} must return logits as one tensor, returned {what}")
        for is_training in (False, True):
            model = deepcopy(self).train(is_training)
            for parameter in filter(attrgetter("requires_grad"), model.head.parameters()):
                parameter.copy_(100 * torch.randn_like(parameter))
            whole = deepcopy(model)
            whole.net.head = whole.head
            seed_step(images.device, 0, 0)
            trained = model(images)
            seed_step(images.device, 0, 0)
            written = logits_of(whole.net, images, self.num_classes)
            atol = CLOSE * float(trained.abs().max())
            if not torch.allclose(written, trained, rtol=0, atol=atol, equal_nan=True):
                raise ValueError(
                    f"{kind} must return what its head returns for one tensor, unchanged; make"
                    " other operations part of self.head"
                )
