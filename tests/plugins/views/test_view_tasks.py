"""What all tasks on views have in common: batches, evaluation, refusals, exact continuation."""

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from tests.core.trainings import data_set
from tests.plugins.views.viewing import TASKS, a_batch, view_task
from vitcli.core.metrics.knn import leave_one_out_knn
from vitcli.core.randomness import seed_step
from vitcli.runner.data.extras import EXTRAS

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


def test_own_pictures_of_one_group_and_copies_do_not_vote_for_each_other(name):
    task, data = view_task(name), data_set()
    own = data.test[torch.arange(60).clamp(max=58)]  # the last one is a copy
    own = replace(own, names=tuple(map(str, range(60))), extra={})
    numbers = (torch.arange(60) // 2).clamp(max=27)
    groups = {str(i): str(numbers[i].item()) for i in range(56)}
    numbers[56:58] = torch.tensor([28, 29])
    numbers[58:] = 30
    contents = {name: name for name in own.names}
    task.check_data(replace(data, train=own, contents=contents, groups=groups))
    features = task.features(task.module, own)
    votes = leave_one_out_knn(features, own.labels, 5, numbers)
    for _ in range(2):  # the second time, the groups are known
        assert_close(task.outputs(task.module, own)["logits"], votes)
    assert not votes.equal(leave_one_out_knn(features, own.labels, 5)), "the control"


def test_images_without_classes_are_refused(name):
    if "target" not in EXTRAS:
        pytest.skip("without the plugin targets, no table has a column target")
    with pytest.raises(ValueError, match=r"task\.name: .* classes, .* has a column 'target'"):
        view_task(name).check_data(data_set())
