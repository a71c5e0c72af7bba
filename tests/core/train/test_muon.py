"""Muon for CPUs equals torch's Muon up to the rounding of bf16."""

import pytest
import torch
from torch.nn import Parameter

from vitcli.core.train.muon import Muon, orthogonalize

SHAPES = [(24, 8), (8, 24), (24, 8), (8, 8)]
COEFFICIENTS = (3.4445, -4.775, 2.0315)


def trained(cls, steps: int, **options) -> list[torch.Tensor]:
    """Return matrices after some steps along random gradients, the same for every class."""
    generator = torch.Generator().manual_seed(0)
    matrices = [Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]
    optimizer = cls(matrices, lr=0.1, weight_decay=0.1, momentum=0.9, **options)
    for _ in range(steps):
        for matrix in matrices[: len(SHAPES) - 1]:  # the last one has no gradient
            matrix.grad = torch.randn(matrix.shape, generator=generator)
        optimizer.step()
    return [matrix.detach() for matrix in matrices]


@pytest.mark.parametrize("nesterov", [True, False])
def test_steps_equal_those_of_torch(nesterov):
    ours, theirs = (trained(cls, 3, nesterov=nesterov) for cls in (Muon, torch.optim.Muon))
    start = trained(Muon, 0)
    for before, one, other in zip(start[:-1], ours, theirs, strict=False):
        moved = (other - before).norm()
        assert moved > 0.1
        assert (one - other).norm() < 0.02 * moved
    assert torch.equal(ours[-1], start[-1])


@pytest.mark.parametrize("shape", [(3, 16, 16), (2, 6, 30), (2, 30, 6)])
def test_directions_are_nearly_orthogonal(shape):
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonalize(matrices, COEFFICIENTS, 10, 1e-7))
    assert values.dtype == torch.float32
    assert 0.6 < values.min() <= values.max() < 1.3


def test_a_gradient_of_zero_gives_no_direction():
    assert orthogonalize(torch.zeros(1, 3, 4), COEFFICIENTS, 5, 1e-7).abs().max() == 0
