"""Principal components of patch features as colours. Axes: B images, P patches, D embed_dim."""

import torch
from torch import Tensor

COLOURS = 3


def principal_directions(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the directions, signs fixed, of largest variance of (n, D), and singular values."""
    _, values, directions = torch.linalg.svd(rows - rows.mean(0), full_matrices=False)
    return directions * torch.where(directions.sum(1, keepdim=True) < 0, -1.0, 1.0), values


def patch_colours(features: Tensor) -> tuple[Tensor, list[float]]:
    """Return a colour (B, P, 3) from 0 to 1 for each patch, and the channels' shares of variance.

    Red, green and blue are the first three principal components of all patches together, so equal
    colours in two images mean similar features. The middle 98 % of each component fill the range
    0 to 1. As figure 1 of Oquab et al. 2023 (DINOv2, https://arxiv.org/abs/2304.07193), without
    its threshold on the first component, which separates an object from its background. A
    component that does not exist is grey.
    """
    rows = features.flatten(0, 1).double()
    directions, values = principal_directions(rows)
    scores = (rows - rows.mean(0)) @ directions[:COLOURS].T
    shares = values.square() / values.square().sum().clamp(min=1e-12)
    low, high = (scores.quantile(q, dim=0) for q in (0.01, 0.99))
    spread = high - low
    is_flat = spread <= 1e-9 * values[:1].clamp(min=1e-12)
    scaled = torch.where(is_flat, 0.5, (scores - low) / torch.where(is_flat, 1.0, spread))
    colours = torch.full((len(rows), COLOURS), 0.5, dtype=torch.float64)
    colours[:, : scaled.shape[1]] = scaled.clamp(0, 1).cpu()
    padded = [*shares[:COLOURS].tolist(), 0.0, 0.0]
    return colours.view(*features.shape[:2], COLOURS), padded[:COLOURS]
