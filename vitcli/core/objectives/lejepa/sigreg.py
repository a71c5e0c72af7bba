"""SIGReg: how far embeddings are from a standard Gaussian, along random directions.

Balestriero and LeCun 2025, https://arxiv.org/abs/2511.08544
Axes: B batch, P width of the embeddings, S slices (directions), T points of the quadrature.
"""

import torch
from torch import Tensor

T_MAX = 5.0
NUM_POINTS = 17
"""Points of the quadrature between -5 and 5. The integrand is even, so half of them suffice."""


def draw_directions(width: int, count: int, device: torch.device) -> Tensor:
    """Draw unit vectors (P, S) from the device's default generator, uniform on the sphere."""
    found = torch.randn(width, count, device=device)
    return found / found.norm(dim=0, keepdim=True)


def epps_pulley(samples: Tensor) -> Tensor:
    """Return the statistic of Epps and Pulley against N(0, 1): (..., B, S) -> (..., S).

    It is B times the integral of |mean exp(i t x) - exp(-t^2 / 2)|^2 exp(-t^2 / 2) over t, by the
    trapezoid rule. Epps and Pulley 1983, https://doi.org/10.1093/biomet/70.3.723
    """
    t = torch.linspace(0, T_MAX, NUM_POINTS // 2 + 1, device=samples.device)
    gauss = (-0.5 * t.square()).exp()
    weights = torch.full_like(t, 2 * T_MAX / (NUM_POINTS // 2))  # both halves of the axis
    weights[0] /= 2
    weights[-1] /= 2
    angles = samples[..., None] * t  # (..., B, S, T)
    real, imaginary = angles.cos().mean(-3), angles.sin().mean(-3)  # (..., S, T)
    error = (real - gauss).square() + imaginary.square()
    return samples.shape[-2] * (error * (weights * gauss)).sum(-1)


def sigreg(embeddings: Tensor, directions: Tensor) -> Tensor:
    """Return the mean statistic over directions: (..., B, P), (P, S) -> scalar."""
    return epps_pulley(embeddings @ directions).mean()
