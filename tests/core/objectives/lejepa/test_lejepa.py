"""LeJEPA: the regulariser equals a plain double loop, and the loss has the paper's two parts."""

import cmath
import math
from itertools import pairwise

import pytest
import torch

from tests.core.objectives.views.viewing import a_batch, view_task
from vitcli.core.objectives.lejepa.lejepa import invariance
from vitcli.core.objectives.lejepa.sigreg import draw_directions, epps_pulley, sigreg
from vitcli.core.randomness import seed_step

CPU = torch.device("cpu")


def slow_epps_pulley(samples: list[float]) -> float:
    """Return the statistic by a plain double loop over t and samples, without the symmetry."""
    points = [-5 + 10 * k / 16 for k in range(17)]
    values = []
    for t in points:
        empirical = sum(cmath.exp(1j * t * x) for x in samples) / len(samples)
        error = abs(empirical - math.exp(-t * t / 2)) ** 2
        values.append(error * math.exp(-t * t / 2))
    area = sum((left + right) / 2 * 10 / 16 for left, right in pairwise(values))
    return len(samples) * area


def test_the_regulariser_is_the_plain_double_loop():
    embeddings = torch.randn(3, 20, 5, dtype=torch.float64) * 1.7 + 0.3
    directions = torch.nn.functional.normalize(torch.randn(5, 4, dtype=torch.float64), dim=0)
    total = 0.0
    for view in embeddings:
        for direction in directions.T:
            total += slow_epps_pulley([(row @ direction).item() for row in view])
    found = sigreg(embeddings, directions).item()
    assert found == pytest.approx(total / 12, rel=1e-5)


def test_a_gaussian_has_a_small_statistic_and_others_a_large_one():
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(500, 64, generator=generator)
    found = {
        "normal": epps_pulley(normal),
        "wide": epps_pulley(2 * normal),
        "narrow": epps_pulley(0.3 * normal),
        "shifted": epps_pulley(normal + 1),
        "uniform": epps_pulley(3**0.5 * (2 * torch.rand(500, 64, generator=generator) - 1)),
        "two points": epps_pulley(normal.sign()),
    }
    means = {name: values.mean().item() for name, values in found.items()}
    # Its expectation under N(0, 1) is the integral of (1 - exp(-t^2)) exp(-t^2 / 2).
    expected = math.sqrt(2 * math.pi) - math.sqrt(2 * math.pi / 3)
    assert means["normal"] == pytest.approx(expected, rel=0.15)
    assert min(value for name, value in means.items() if name != "normal") > 2 * means["normal"]


def test_directions_are_unit_vectors_and_a_function_of_the_step():
    draws = []
    for step in (0, 1, 0):
        seed_step(CPU, 3, step)
        draws.append(draw_directions(6, 50, CPU))
    assert torch.equal(draws[0], draws[2])
    assert not torch.equal(draws[0], draws[1])
    torch.testing.assert_close(draws[0].norm(dim=0), torch.ones(50))


def test_each_view_is_compared_with_the_mean_of_the_global_views():
    embeddings = torch.randn(4, 5, 3)
    terms = [
        (embeddings[b, v] - (embeddings[b, 0] + embeddings[b, 1]) / 2).square().mean()
        for b in range(4)
        for v in range(5)
    ]
    torch.testing.assert_close(invariance(embeddings, 2), sum(terms) / 20)


def test_the_loss_is_the_weighted_sum_of_its_parts():
    task = view_task("lejepa", {"task": {"sigreg_weight": 0.3}})
    found = task.losses(a_batch(task))
    wanted = 0.7 * found["invariance"] + 0.3 * found["sigreg"]
    torch.testing.assert_close(found["loss"].detach(), wanted)
    found["loss"].backward()
    assert task.module.encoder.blocks[0].attn.inner.qkv.weight.grad.abs().max() > 0
