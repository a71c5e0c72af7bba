"""Networks between an encoder and a loss on views.

Axes: B batch, V views, C channels, H W pixels, D features of the encoder, F width.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from vitcli.core.models.image_model import ImageModel
from vitcli.core.models.vit import VisionTransformer
from vitcli.core.ops.backend import Gelu, Linear
from vitcli.core.randomness import Draws

STD = 0.02


class Projector(nn.Sequential):
    """MLP on features, (..., F in) -> (..., F out), with GELU and perhaps batch norm in between.

    The batch norm takes (B, F). It has no running statistics: the head is not used after the
    training.
    """

    def __init__(self, widths: Sequence[int], *, batch_norm: bool) -> None:
        layers: list[nn.Module] = []
        for before, after in pairwise(widths):
            layers.append(Linear(before, after))
            if batch_norm:
                layers.append(nn.BatchNorm1d(after, track_running_stats=False))
            layers.append(Gelu())
        super().__init__(*layers[: -2 if batch_norm else -1])

    def initialise(self, draws: Draws) -> None:
        """Fill the layers: truncated normal weights with standard deviation 0.02, biases of 0."""
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear):
                generator = draws(f"{name}.weight")
                nn.init.trunc_normal_(module.weight, std=STD, generator=generator)
                nn.init.zeros_(module.bias)


def all_features(encoder: ImageModel, images: Tensor, local: Tensor | None) -> Tensor:
    """Return the pooled features of global views, then those of local views: (B, V, D)."""
    features = []
    for views in [images] if local is None else [images, local]:
        flat = views.flatten(0, 1)
        if flat.shape[1:] == encoder.image_shape:
            pooled = encoder.features(flat)
        elif isinstance(encoder, VisionTransformer):
            pooled = encoder.pool(encoder.encode(flat))
        else:
            raise ValueError(f"family {encoder.spec.family!r} needs images of its own size")
        features.append(pooled.unflatten(0, views.shape[:2]))
    return torch.cat(features, dim=1)
