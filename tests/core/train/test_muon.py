"""Muon on batches of matrices equals torch's Muon up to the rounding of bf16."""

import pytest
import torch
from torch.nn import Parameter
from torch.testing import assert_close

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


def test_infinite_gradients_leave_matrices_and_momentum_unchanged():
    """``found_inf`` is how a GradScaler tells an optimiser."""
    matrices = [Parameter(torch.randn(shape)) for shape in SHAPES]
    optimizer = Muon(matrices, lr=0.1, weight_decay=0.1)

    def step(found_inf: float) -> list[torch.Tensor]:
        for matrix in matrices:
            matrix.grad = torch.randn_like(matrix)
            matrix.grad[0, 0] += found_inf * float("inf") if found_inf else 0.0
        optimizer.found_inf = torch.tensor(found_inf)
        optimizer.step()
        return [t.clone() for m in matrices for t in (m, optimizer.state[m]["momentum_buffer"])]

    first, skipped, second = step(0.0), step(1.0), step(0.0)
    assert all(map(torch.equal, first, skipped))
    assert not any(map(torch.equal, skipped, second))


@pytest.mark.parametrize("shape", [(16, 16), (6, 30), (30, 6)])
def test_directions_in_bf16_are_those_of_torch(shape):
    """A GPU computes them in bf16; see ``find_directions``."""
    from torch.optim._muon import _zeropower_via_newtonschulz as theirs

    matrices = torch.randn(3, *shape)
    ours = orthogonalize(matrices.bfloat16(), COEFFICIENTS, 5, 1e-7).float()
    for matrix, found in zip(matrices, ours, strict=True):
        assert_close(found, theirs(matrix, COEFFICIENTS, 5, 1e-7).float(), atol=0.05, rtol=0.05)
