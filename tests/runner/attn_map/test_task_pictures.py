"""Pictures of a task during training: the same images each time, and no effect on the bits."""

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal
from torch import nn

from tests import denoising
from tests.runner.train.conftest import train
from tests.same_run import assert_same_run
from vitcli.core.objectives.objective import Task
from vitcli.core.objectives.pictures import Grid, Heat
from vitcli.core.spec import TASKS
from vitcli.runner.attn_map.task_pictures import fixed_pictures, picture_sheet
from vitcli.runner.data.contact_sheet import GAP, MARGIN
from vitcli.runner.run.folder import RunDir

CHANGES = {"task.name": "denoise", "train.ema_decay": None, "train.epochs": 3}


@pytest.fixture(autouse=True)
def _added(monkeypatch) -> None:
    monkeypatch.setitem(TASKS, "denoise", denoising.ROW)


def run(tiny: Path, folder: str, **options) -> RunDir:
    return train(tiny, folder, CHANGES, **options).run


def test_careless_pictures_do_not_change_the_training(tiny, here, monkeypatch):
    calm = run(tiny, "calm")
    original, seen = denoising.Denoise.pictures, []

    def careless(self: Task, module: nn.Module, data, index):
        seen.append((module.training, torch.is_grad_enabled(), index.tolist()))
        module.train()
        torch.rand(3)
        return original(self, module, data, index)

    monkeypatch.setattr(denoising.Denoise, "pictures", careless)
    assert_same_run(calm, run(tiny, "careless"), measures=("test_error",))
    assert seen == [(False, False, seen[0][2])] * 3, "the same images, in eval mode"


def test_the_mode_of_each_part_is_restored(tiny, here):
    """A teacher may always be in eval mode."""
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).eval())

    class Shown:
        def pictures(self, module, data, index):
            assert not any(part.training for part in module.modules())
            return {}

    class Data:
        class test:  # noqa: N801
            labels = torch.tensor([0, 1])
            pixels = torch.zeros(2, 3, 4, 4)

    assert fixed_pictures(Shown(), module, Data()) == ({}, 2)
    assert [part.training for part in module.modules()] == [True, True, False]


def test_a_grid_is_a_sheet_of_its_images_with_names():
    cells = torch.randint(256, (2, 3, 3, 32, 32), dtype=torch.uint8)
    options = {"title": "Title", "caption": "Caption.", "columns": ("a", "b", "c")}
    sheet = picture_sheet(Grid(**options, cells=cells, row_names=("one", "two")))
    assert sheet.shape == (GAP + 2 * 70, MARGIN + 3 * 70, 3)
    left, top = MARGIN + 2 * 70, GAP + 70
    found = sheet[top : top + 64 : 2, left : left + 64 : 2]
    assert_array_equal(found, cells[1, 2].permute(1, 2, 0))
    long = picture_sheet(Grid(**options, cells=cells, row_names=("one", "a much longer name")))
    assert long.shape[1] > sheet.shape[1] + 30, "the name has room"


def test_the_maps_of_a_sheet_share_one_scale():
    cells = torch.zeros(1, 2, 8, 8)
    cells[0, 0, 0, 0], cells[0, 1, 7, 7] = 4.0, -2.0
    options = {"title": "Title", "caption": "Caption.", "columns": ("a", "b")}
    sheet = picture_sheet(Heat(**options, cells=cells))
    assert sheet[GAP + 2, MARGIN + 2].tolist() == [253, 231, 36], "viridis' yellow"
    assert sheet[GAP + 61, MARGIN + 70 + 61].tolist() == [68, 1, 84], "viridis' purple"
    assert np.isfinite(picture_sheet(Heat(**options, cells=torch.ones(1, 2, 8, 8)))).all()
