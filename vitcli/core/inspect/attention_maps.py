"""The attention weights of a model. Axes: B batch, h num_heads, N tokens (prefix first)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from vitcli.core.models.image_model import ImageModel
from vitcli.core.models.vit import VisionTransformer


def attention_maps(
    model: ImageModel, images: Tensor, layers: Sequence[int] | None = None
) -> dict[int, Tensor]:
    """Attention weights (B, h, N, N) by layer (from 0), in eval mode and without gradients.

    A row is a query, a column a key; a row sums to 1.

    Raises:
        ValueError: The model has no attention, or no such layer.
    """
    if not isinstance(model, VisionTransformer):
        raise ValueError(f"family {model.spec.family!r} {model.no_maps}")
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            return model.attention_weights(images, layers)
    finally:
        model.train(was_training)
