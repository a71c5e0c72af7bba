"""DINO and LeJEPA are what the formulas of their papers say."""

import cmath
import itertools
import math
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from tests.core.trainings import data_set, of_parameters
from tests.plugins.views.viewing import a_batch, view_task
from vitcli.core.models.image_model import build_model
from vitcli.core.train.optim import build_optimizers
from vitcli.core.train.training import Training
from vitcli.plugins.dino.dino import cosine_to_one, entropies
from vitcli.plugins.lejepa.lejepa import invariance, sigreg
from vitcli.runner.run.folder import BUNDLED, RunDir
from vitcli.runner.train import initial


def take_steps(task, count):
    students = []
    for _ in itertools.islice(Training(task.spec, task, data_set()).run_epoch(0), count):
        students.append([each.detach().clone() for each in task.module.student.parameters()])
    return students


def test_the_teacher_is_the_closed_form_of_the_average_after_three_steps():
    task = view_task("dino")
    start = [each.clone() for each in task.module.teacher.parameters()]
    students = take_steps(task, 3)
    momenta = [cosine_to_one(0.9, step / 12) for step in range(3)]
    wanted = [math.prod(momenta) * tensor for tensor in start]
    for i, student in enumerate(students):
        share = (1 - momenta[i]) * math.prod(momenta[i + 1 :])
        wanted = [left + share * right for left, right in zip(wanted, student, strict=True)]
    for found, tensor in zip(task.module.teacher.parameters(), wanted, strict=True):
        assert_close(found.detach(), tensor)
    moved = [(a - b).abs().max() for a, b in zip(start, wanted, strict=True)]
    assert max(moved) > 1e-4, "the test would pass without an average"


def test_the_teacher_has_no_gradient_and_no_optimiser():
    task = view_task("dino")
    task.losses(a_batch(task))["loss"].backward()
    assert all(each.grad is None for each in task.module.teacher.parameters())
    learned = of_parameters(task.module, build_optimizers(task.module, task.spec.optim), "lr")
    assert not [name for name in learned if name.startswith("teacher.")]
    missing = [n for n, p in task.module.student.named_parameters() if p.grad is None]
    assert missing == ["encoder.head.weight", "encoder.head.bias"]


def test_the_teacher_is_without_the_dropout_of_own_code(monkeypatch):
    def build(spec, seed):
        model = build_model(spec, seed)
        model.pos_drop = torch.nn.Dropout(0.5)
        return model

    monkeypatch.setattr("vitcli.plugins.dino.dino.build_model", build)
    module, images = view_task("dino").module, a_batch(view_task("dino"))["images"]
    assert torch.equal(module.teacher(images), module.teacher(images))
    assert not torch.equal(module.student(images), module.student(images)), "the control"


def test_the_centre_is_the_average_of_the_teachers_outputs():
    task = view_task("dino", {"task": {"center_momentum": 0.7}})
    batch = a_batch(task)
    for _ in range(2):
        before = task.module.center.clone()
        outputs = task.module.teacher(batch["images"])
        task.losses(batch)
        task.after_step()
        assert_close(task.module.center, 0.7 * before + 0.3 * outputs.mean((0, 1)))


def test_the_loss_is_that_of_the_papers_algorithm_1_with_centre_and_temperatures_of_the_task():
    task = view_task("dino", {"task": {"student_temperature": 0.3, "teacher_temperature": 0.05}})
    task.module.center.normal_()
    batch = a_batch(task)
    student, teacher = task.module(batch["images"], batch["local"], batch["learns"][0])
    terms = []
    for g in range(teacher.shape[1]):
        target = F.softmax((teacher[:, g] - task.module.center) / 0.05, dim=-1)
        for v in range(student.shape[1]):
            if v != g:
                scores = F.log_softmax(student[:, v] / 0.3, dim=-1)
                terms.append(-(target * scores).sum(-1).mean())
    assert_close(task.losses(batch)["loss"], sum(terms) / len(terms))


def test_prototypes_are_frozen_in_the_first_epoch_only():
    task = view_task("dino", {"optim": {"weight_decay": 0.0}})
    prototypes = task.module.student.head.prototypes
    before = prototypes.detach().clone()
    take_steps(task, 4)
    assert torch.equal(prototypes, before)
    batch = a_batch(task, epoch=1)
    assert batch["learns"].unique().tolist() == [1.0]
    task.losses(batch)["loss"].backward()
    assert prototypes.grad.abs().max() > 0


def test_the_schedule_reaches_its_ends():
    fields = {"warmup_teacher_temperature": 0.02, "teacher_warmup_epochs": 2.0}
    task = view_task("dino", {"task": fields})
    first, middle, last = (task.schedule(step, 4) for step in (0, 4, 12))
    assert first == {"temperature": 0.02, "momentum": pytest.approx(0.9), "learns": 0.0}
    assert middle["temperature"] == pytest.approx(0.03)
    assert last == {"temperature": 0.04, "momentum": 1.0, "learns": 1.0}
    batches = [*task.batches(data_set(), 1)]
    found = [batch["momentum"][0].item() for batch in batches]
    assert found == [pytest.approx(task.schedule(4 + i, 4)["momentum"]) for i in range(4)]


def test_local_crops_have_the_resized_positions():
    encoder = view_task("dino").module.student.encoder.eval()
    local = torch.randn(3, 3, 8, 8)
    table = encoder.pos_embed()  # (1, 16, D), a grid of 4 x 4
    image = table.mT.unflatten(-1, (4, 4))
    small = F.interpolate(image, size=(2, 2), mode="bilinear").flatten(2).mT
    wanted = encoder.patch_embed(local) + small
    assert_close(encoder.embed_patches(local, (2, 2)), wanted)
    assert encoder.encode(local).shape == (3, 4, 24)


def test_entropies_tell_the_two_collapses_apart():
    uniform = torch.full((8, 2, 4), 0.25)
    peak = torch.eye(4)[0].expand(8, 2, 4)
    healthy = torch.eye(4)[torch.arange(16) % 4].view(8, 2, 4)
    found = [[round(x.item(), 4) for x in entropies(each)] for each in (uniform, peak, healthy)]
    assert found == [[1.0, 1.0], [0.0, 0.0], [0.0, 1.0]]


@pytest.mark.parametrize(
    ("numbers", "words"), [((0.999, 1.0), "uniform"), ((0.01, 0.05), "same peak"), ((0.4, 0.8), "")]
)
def test_the_monitor_names_the_collapse(numbers, words):
    names = ("sample_entropy", "batch_entropy")
    found = view_task("dino").diagnose(dict(zip(names, numbers, strict=True)))
    assert words in found
    assert bool(found) == bool(words)


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


def test_each_view_is_compared_with_the_mean_of_the_global_views():
    embeddings = torch.randn(4, 5, 3)
    terms = [
        (view - (views[0] + views[1]) / 2).square().mean() for views in embeddings for view in views
    ]
    assert_close(invariance(embeddings, 2), sum(terms) / 20)


def test_the_loss_is_the_weighted_sum_of_its_parts():
    task = view_task("lejepa", {"task": {"sigreg_weight": 0.3}})
    found = task.losses(a_batch(task))
    wanted = 0.7 * found["invariance"] + 0.3 * found["sigreg"]
    assert_close(found["loss"].detach(), wanted)
    found["loss"].backward()
    assert task.module.encoder.blocks[0].attn.inner.qkv.weight.grad.abs().max() > 0


def test_the_student_of_dino_starts_like_its_teacher(monkeypatch):
    task, run = view_task("dino"), RunDir(BUNDLED / "cifar10-pocket")
    given = {name: tensor + 1 for name, tensor in task.module.teacher.encoder.state_dict().items()}
    monkeypatch.setattr(initial, "encoder_weights", lambda source, *words, **options: dict(given))
    module = initial.initial_module(task.spec, data_set(), run, print)
    for part in (module.student.encoder, module.teacher.encoder):
        taken = part.state_dict()
        assert all(torch.equal(taken[name], tensor) for name, tensor in given.items())
