"""The checks of the papers, and what a teacher must not do. Axes: B batch, K classes."""

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from tests.core.specs import REQUIRED, changed
from tests.core.trainings import HALF, data_set, new_task, train_state
from vitcli.core.data.augment import normalize
from vitcli.core.models.image_model import build_model
from vitcli.core.spec import model_spec
from vitcli.core.torch_use import autocast_to
from vitcli.plugins.distil.distil import Distil, Teacher, soft_loss

SIZES: dict[str, Any] = {"img_size": 16, "in_chans": 3, "num_classes": 5}
CONVNET = SIZES | {"family": "convnet", "widths": [8, 8, 16]}
TIMM = SIZES | {"family": "timm", "name": "test_resnet"}
SWIN = changed(family="swin", **REQUIRED["swin"]).model_dump()
KINDS: dict[str, dict[str, Any]] = {
    "logits": {},
    "token": {"kind": "token"},
    "features": {"kind": "features", "layers": [1, 2], "teacher_layers": ["blocks.0", "blocks.1"]},
    "features of a convnet": {
        "kind": "features",
        "layers": [1, 2],
        "teacher_layers": ["stages.1", "stages.2"],
        "teacher": {"run": "any", "model": CONVNET},
    },
    "features of a model of timm": {
        "kind": "features",
        "layers": [1],
        "teacher_layers": ["net.layer2"],
        "teacher": {"run": "any", "model": TIMM},
    },
    "logits of a model in stages": {"teacher": {"run": "any", "model": SWIN}},
}


def changes(task: dict[str, Any], **model: Any) -> dict[str, dict[str, Any]]:
    return {"task": {"name": "distil"} | task, "model": {"reg_tokens": 1} | model}


def make(task: dict[str, Any], **model: Any) -> Distil:
    made = new_task(changes(task, **model))
    assert isinstance(made, Distil)
    return made


def batch_of(task: Distil) -> dict[str, Tensor]:
    return next(task.batches(data_set(), 0))


def logits(seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(4, 5, dtype=torch.float64, generator=generator)


def gradient(temperature: float) -> Tensor:
    student = logits(0).requires_grad_()
    soft_loss(student, logits(1), temperature).backward()
    assert student.grad is not None
    return 4 * student.grad


def test_at_a_high_temperature_logits_without_their_mean_are_matched():
    """Hinton et al. 2015, equation 4: the gradient is (z - v) / K for logits of mean 0."""
    student, teacher = (each - each.mean(-1, keepdim=True) for each in (logits(0), logits(1)))
    matched = (student - teacher) / 5
    assert_close(gradient(1e5), matched, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(gradient(1.0), matched, rtol=0.1)
    assert_close(gradient(1.0), logits(0).softmax(-1) - logits(1).softmax(-1))


@pytest.mark.parametrize("standardize", [True, False])
def test_the_loss_standardises_if_it_is_asked(standardize):
    """Sun et al. 2024, section 4.2: shift and scale of the teacher do not matter then."""
    task = make({"standardize": standardize})
    batch = batch_of(task)
    before = task.losses(batch)["distillation"]
    with torch.no_grad():
        task.teacher.get_parameter("head.weight").mul_(3)
        task.teacher.get_parameter("head.bias").mul_(3).add_(1)
    assert torch.allclose(before, task.losses(batch)["distillation"], rtol=1e-4) is standardize


def test_a_loss_has_the_shares_of_labels_and_teacher():
    batch = batch_of(make({}))
    ends = [make({"share": share}).losses(batch)["loss"] for share in (0.0, 1.0)]
    found = make({"share": 0.25}).losses(batch)
    assert_close(found["loss"], 0.75 * ends[0] + 0.25 * ends[1])
    assert_close(found["distillation"], ends[1].detach())
    expected = new_task({"model": {"reg_tokens": 1}}).losses(batch)["loss"]
    assert_close(ends[0], expected)


def head_gradients(batch, shift=0.0):
    task = make({"kind": "token"})
    with torch.no_grad():
        task.teacher.get_parameter("head.bias")[3] += shift
    task.losses(batch)["loss"].backward()
    encoder = task.module.encoder
    return encoder.head.weight.grad, encoder.head_dist.weight.grad


def test_the_head_of_the_token_learns_from_the_teacher_and_the_other_from_labels():
    """DeiT, Touvron et al. 2021: hard-label distillation."""
    batch = batch_of(make({"kind": "token"}))
    head, token = head_gradients(batch)
    relabelled = head_gradients(batch | {"targets": (batch["targets"] + 1) % 5})
    retaught = head_gradients(batch, shift=100.0)
    assert_close(relabelled[1], token, rtol=0, atol=0)
    assert_close(retaught[0], head, rtol=0, atol=0)
    assert not torch.allclose(relabelled[0], head)
    assert not torch.allclose(retaught[1], token)


def test_a_prediction_is_the_mean_of_the_probabilities_of_both_heads():
    task = make({"kind": "token"})
    encoder, images = task.module.encoder.eval(), batch_of(task)["images"]
    one, other = encoder.both_heads(encoder.forward_features(images))
    mean = (one.softmax(-1) + other.softmax(-1)) / 2
    assert_close(encoder(images).softmax(-1), mean)
    assert_close(encoder.forward_with_weights(images)[0], encoder(images))
    assert not torch.allclose(one, other)
    assert encoder.num_prefix_tokens == 2, "CLS and the distillation token"
    assert encoder.pool_weights(images)[0].tolist() == [0.5, 0.5] + [0.0] * encoder.num_patches


def test_features_of_a_student_that_equals_its_teacher_have_no_error():
    """Li et al. 2022; the projections are the identity."""
    task = make(KINDS["features"])
    task.module.eval()
    task.teacher.load_state_dict(task.module.encoder.state_dict())
    for part in task.module.projections:
        nn.init.eye_(part.weight)
    batch = batch_of(task)
    assert task.losses(batch)["distillation"] < 1e-9
    task.teacher.blocks[1].ffn.inner.fc2.weight.data.mul_(2)
    assert task.losses(batch)["distillation"] > 1e-9


def test_features_are_resized_to_the_grid_of_the_teacher():
    task = make(KINDS["features of a convnet"] | {"feature_weight": 0.5})
    found = task.losses(batch_of(task))
    assert [part.out_features for part in task.module.projections] == [8, 16]
    plain = task.class_losses(task.network(batch_of(task)["images"]), batch_of(task)["targets"])
    assert_close(found["loss"], plain["loss"] + 0.5 * found["distillation"])
    found["loss"].backward()
    assert all(part.weight.grad.abs().sum() > 0 for part in task.module.projections)


@pytest.mark.parametrize("kind", KINDS)
def test_the_teacher_is_frozen_and_belongs_to_nothing_that_is_saved(kind):
    state = train_state(changes(KINDS[kind]) | {"train": {"ema_decay": 0.9}})
    task = state.task
    assert isinstance(task, Distil)
    before = copy.deepcopy(task.teacher.state_dict())
    ids = {id(each) for each in task.teacher.parameters()}
    task.module.train()
    for _ in state.run_epoch(0):
        assert not task.teacher.training
    after = task.teacher.state_dict()
    assert all(before[name].equal(after[name]) for name in before), "batch norms do not follow"
    owned = [*state.module.parameters(), *state.evaluated_module.parameters()]
    owned += [p for o in state.optimizers for group in o.param_groups for p in group["params"]]
    assert not ids & {id(each) for each in owned}
    shared = {each.data_ptr() for each in task.teacher.state_dict().values()}
    assert not shared & {each.data_ptr() for each in state.tensors().values()}
    assert all(each.grad is None for each in task.teacher.parameters())


def test_the_teacher_sees_images_as_in_its_own_training():
    """Other mean and standard deviation, and another size."""
    size, mean, std = 32, (0.1, 0.2, 0.3), (0.2, 0.3, 0.4)
    model = CONVNET | {"img_size": size}
    task = make({"teacher": {"run": "any", "model": model, "mean": mean, "std": std}})
    own = build_model(model_spec(**model), 0).eval()
    own.load_state_dict(task.teacher.state_dict())
    pixels = data_set().train.pixels[:4]
    given = normalize(pixels, torch.tensor(HALF), torch.tensor(HALF))
    seen: list[Tensor] = []
    task.teacher.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    batch = {"images": given, "targets": torch.zeros(4, dtype=torch.long)}
    task.losses(batch)
    expected = normalize(pixels, torch.tensor(mean), torch.tensor(std))
    expected = nn.functional.interpolate(expected, (size, size), mode="bilinear")
    assert_close(seen[0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
@pytest.mark.parametrize("kind", ["logits", "token"])
def test_copies_are_labelled_once_with_what_the_teacher_says_of_the_images(kind, autocast):
    fields = changes(KINDS[kind]) | {"augment": {"crop_padding": 2, "flip": "random", "copies": 2}}
    state = train_state(fields, autocast=autocast)
    task, data = state.task, data_set(70)  # the last batch is not full
    assert isinstance(task, Distil)
    tolerance = {"rtol": 0.01, "atol": 0.01} if autocast else {}
    seen: list[int] = []
    task.teacher.register_forward_hook(lambda *_: seen.append(1))
    for epoch, labelled in enumerate((70, 140, 140, 140)):
        for number, batch in enumerate(task.batches(data, epoch)):
            if number == 0:
                assert len(seen) == 5 * labelled // 70
            with autocast_to(batch["images"].device, autocast):
                wanted = Teacher.logits(task._teacher, batch["images"])
            seen.pop()
            exact = {"rtol": 0.0, "atol": 0.0} if epoch < 2 else tolerance
            assert_close(batch["teacher"], wanted, **exact)
            asked = {name: value for name, value in batch.items() if name != "teacher"}
            with autocast_to(batch["images"].device, autocast):
                kept, asked = task.losses(batch), task.losses(asked)
            seen.pop()
            assert_close(kept["loss"], asked["loss"], **tolerance)


def test_a_resumed_training_labels_a_copy_in_the_batches_of_its_first_epoch():
    """Else its last bits would differ."""
    fields = changes({}) | {"augment": {"flip": "random", "copies": 2}}
    calm, resumed = new_task(fields), new_task(fields)
    assert isinstance(resumed, Distil)
    seen: list[Tensor] = []
    resumed.teacher.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    resumed.rows(data_set(), 2)
    first = [batch["images"] for batch in calm.batches(data_set(), 0)]
    assert_close(seen, first, rtol=0, atol=0)


def test_a_teacher_of_other_classes_or_channels_is_refused():
    teacher = {"run": "any", "model": CONVNET, "class_names": tuple("edcba")}
    with pytest.raises(ValueError, match="other classes"):
        make({"teacher": teacher}).check_data(data_set())
    make({"teacher": teacher | {"class_names": tuple("abcde")}}).check_data(data_set())
    make(KINDS["features of a convnet"] | {"teacher": teacher}).check_data(data_set())
    two = make({"standardize": True}, num_classes=2)
    with pytest.raises(ValueError, match=r"task\.standardize"):
        two.check_data(replace(data_set(), class_names=("a", "b")))
    grey = make({"teacher": {"run": "any", "model": CONVNET | {"in_chans": 1}}})
    with pytest.raises(ValueError, match="channels"):
        grey.check_data(data_set())
