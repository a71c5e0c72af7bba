"""Pictures during training: the same images each time, and no effect on the bits."""

import io
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal
from PIL import Image
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
from torch import nn

from tests import denoising
from tests.core.specs import build
from tests.runner.train.conftest import train
from tests.same_run import assert_same_run
from vitcli.core.data.augment import normalize
from vitcli.core.data.source import Images
from vitcli.core.inspect.maps import head_maps
from vitcli.core.objectives.objective import Task
from vitcli.core.spec import TASKS, DataSpec
from vitcli.runner.attn_map import training_pictures
from vitcli.runner.attn_map.training_pictures import (
    attention_strip,
    fixed_pictures,
    mean_maps,
    weight_bytes,
)
from vitcli.runner.data.contact_sheet import GAP, MARGIN
from vitcli.runner.run.folder import RunDir
from vitcli.runner.run.tensorboard import PICTURES, Board

QUICK = {"optim.lr": 0.05, "train.ema_decay": None}
"""A high rate, so that attention changes visibly in every epoch."""
DATA = DataSpec(mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4))


def run(tiny: Path, folder: str, changes: dict | None = None, **options) -> RunDir:
    return train(tiny, folder, changes, **options).folder


def pictures_of(folder: Path) -> list[tuple[int, bytes]]:
    """Return (step, PNG) of every picture of attention in the only event file of a folder."""
    (file,) = folder.glob("events.out.tfevents.*")
    return [
        (event.step, value.image.encoded_image_string)
        for event in LegacyEventFileLoader(str(file)).Load()
        for value in event.summary.value
        if value.tag == PICTURES
    ]


def test_about_ten_pictures_a_run_and_one_at_the_end(tiny, here):
    # At a constant rate: at the end of a cosine a step may move no pixel.
    changes = QUICK | {"train.epochs": 21, "optim.schedule": "constant", "train.limit_batches": 1}
    found = pictures_of(run(tiny, "run", changes).path)
    assert [step for step, _ in found] == [*range(2, 21, 2), 21]
    assert len({content for _, content in found}) == len(found), "the model changed in between"


def test_a_board_copies_pictures_up_to_the_last_record(tmp_path):
    board = Board(tmp_path, [], pytest.fail)
    for step in (5, 10, 15):
        board.picture(np.full((4, 6, 3), step, dtype=np.uint8), step)
    board.close()
    twin = (tmp_path / "events.out.tfevents.0.vm.1.1").write_bytes
    twin(next(tmp_path.glob("events*")).read_bytes())  # as after a kill between copy and removal
    cut = tmp_path / "events.out.tfevents.0.vm.1.2"
    cut.write_bytes(b"no record")
    # The picture of step 15 was drawn, but the checkpoint of step 15 was not saved.
    records = [{"step": step, "train_loss": 1.0} for step in (5, 10)]
    Board(tmp_path, records, pytest.fail).close()
    assert [step for step, _ in pictures_of(tmp_path)] == [5, 10]
    content = pictures_of(tmp_path)[1][1]
    assert_array_equal(np.asarray(Image.open(io.BytesIO(content))), np.full((4, 6, 3), 10))
    Board(tmp_path, [], pytest.fail).close()
    assert pictures_of(tmp_path) == []


@pytest.mark.parametrize(("pool", "training"), [("cls", True), ("mean", False), ("seq", True)])
def test_a_strip_is_images_above_the_maps_of_each_layer(pool, training):
    # In float64: scores reach 5,000 here, which float32 rounds by 3e-4, and so every weight by 3e-4
    # of itself; how exactly depends on the processor and on the number of images at once.
    model = build(pool=pool, reg_tokens=1, norm="batch_norm").train(training)
    pixels = torch.randint(256, (3, 3, 16, 16), dtype=torch.uint8)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    drawn = attention_strip(model, pixels, DATA)
    assert model.training is training
    assert torch.equal(torch.get_rng_state(), state)
    assert all(value.equal(before[name]) for name, value in model.state_dict().items())
    assert drawn.shape == (GAP + 3 * 70, MARGIN + 3 * 70, 3)
    second = drawn[GAP : GAP + 64, MARGIN + 70 : MARGIN + 134]
    assert_array_equal(second[::4, ::4], pixels[1].permute(1, 2, 0))
    maps = mean_maps(model, pixels, DATA)
    image, layer, row, column = np.unravel_index(maps.argmax(), maps.shape)
    y, x = GAP + 70 * (layer + 1) + 16 * row + 8, MARGIN + 70 * image + 16 * column + 8
    assert drawn[y, x].tolist() == [253, 231, 36], "the largest is viridis' yellow"
    model.eval()
    images = normalize(pixels, torch.tensor(DATA.mean), torch.tensor(DATA.std)).double()
    with torch.no_grad():
        weights = model.attention_weights(images)[1].mean(1)
        shares = model.pool.weights(model.forward_features(images))[:, None]
    expected = (shares @ weights)[:, 0, model.num_prefix_tokens :].unflatten(1, (4, 4))
    np.testing.assert_allclose(maps[:, 1], expected, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize(("share", "passes"), [(100, 1), (4, 2), (1, 6)])
def test_a_strip_computes_as_many_maps_at_once_as_fit(share, passes, monkeypatch):
    model = build().eval()
    pixels = torch.randint(256, (3, 3, 16, 16), dtype=torch.uint8)
    one = [mean_maps(model, pixels[i : i + 1], DATA) for i in range(3)]
    asked = []
    counted = lambda request: asked.append(request) or head_maps(request)  # noqa: E731
    monkeypatch.setattr(training_pictures, "head_maps", counted)
    monkeypatch.setattr(training_pictures, "MAX_BYTES", share * weight_bytes(model))
    maps = mean_maps(model, pixels, DATA)
    assert len(asked) == passes
    np.testing.assert_allclose(maps, np.concatenate(one), rtol=1e-6, atol=1e-12)


CHANGES = {"task.name": "denoise", "train.ema_decay": None, "train.epochs": 3}


@pytest.fixture(autouse=True)
def _added(monkeypatch) -> None:
    monkeypatch.setitem(TASKS, "denoise", denoising.ROW)


def test_careless_pictures_do_not_change_the_training(tiny, here, monkeypatch):
    calm = run(tiny, "calm", CHANGES)
    original, seen = denoising.Denoise.pictures, []

    def careless(self: Task, module: nn.Module, data, index):
        seen.append((module.training, torch.is_grad_enabled(), index.tolist()))
        module.train()
        torch.rand(3)
        return original(self, module, data, index)

    monkeypatch.setattr(denoising.Denoise, "pictures", careless)
    assert_same_run(calm, run(tiny, "careless", CHANGES), measures=("test_error",))
    assert seen == [(False, False, seen[0][2])] * 3, "the same images, in eval mode"


def test_the_mode_of_each_part_is_restored():
    """A teacher may always be in eval mode."""
    module, modes = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).eval()), []

    def look(module, data, index):
        modes.extend(part.training for part in module.modules())
        return {}

    data = SimpleNamespace(test=Images(torch.zeros(2, 3, 4, 4), torch.tensor([0, 1])))
    assert fixed_pictures(SimpleNamespace(pictures=look), module, data) == ({}, 2)
    assert modes == [False] * 3
    assert [part.training for part in module.modules()] == [True, True, False]
