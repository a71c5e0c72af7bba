"""What all tasks on views have in common: batches, evaluation, refusals, exact continuation."""

import pytest
import torch
from torch.testing import assert_close

from tests.core.trainings import data_set
from tests.plugins.views.viewing import TASKS, a_batch, view_task
from vitcli.core.metrics.knn import leave_one_out_knn
from vitcli.core.randomness import seed_step

pytestmark = pytest.mark.parametrize("name", TASKS)


def test_a_batch_holds_normalised_views(name):
    task = view_task(name, {"task": {"num_global": 3, "num_local": 4}})
    batch = a_batch(task)
    assert batch["images"].shape == (16, 3, 3, 16, 16)
    assert batch["local"].shape == (16, 4, 3, 8, 8)
    assert all(len(tensor) == 16 for tensor in batch.values())
    assert -1.001 <= batch["images"].min() < 0 < batch["images"].max() <= 1.001


def test_its_losses_are_computed_in_fp32_under_autocast(name):
    fields = {"head_norm": "batch"} if name == "dino" else {}
    task = view_task(name, {"task": fields})
    batch = a_batch(task)
    seed_step(torch.device("cpu"), 0, 0)
    exact = task.losses(batch)
    seed_step(torch.device("cpu"), 0, 0)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = task.losses(batch)
    assert all(value.dtype == torch.float32 for value in rounded.values())
    assert_close(rounded["loss"], exact["loss"], rtol=0.1, atol=0)
    rounded["loss"].backward()


def test_an_evaluation_is_the_k_nn_accuracy_of_the_encoder(name):
    task, images = view_task(name), data_set().test
    outputs = task.outputs(task.module, images)
    encoder = type(task).encoder(task.module).eval()
    with torch.no_grad():
        features = encoder.features(data_set().normalize(images.pixels))
    votes = leave_one_out_knn(features, images.labels, 5)
    assert_close(outputs["logits"], votes)
    share = (votes.argmax(1) == images.labels).float().mean().item()
    assert task.measure(outputs) == {"knn_accuracy": pytest.approx(share)}
