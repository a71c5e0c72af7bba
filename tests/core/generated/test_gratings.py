"""The data set ``gratings``: the waves have the direction and the period of their class."""

import pytest
import torch

from vitcli.core.generated.gratings import CLASSES, PERIODS, TANGENTS, draw


@pytest.mark.parametrize("name", CLASSES)
def test_the_strongest_wave_has_the_direction_and_the_period_of_the_class(name):
    pixels = draw(CLASSES[name], 50, torch.Generator().manual_seed(2)).double()
    gray = pixels - pixels.mean((2, 3), keepdim=True)
    power = torch.fft.fft2(gray).abs().square().sum(1)  # (n, 32, 32), over the channels
    power[:, 0, 0] = 0
    places = power.flatten(1).argmax(1)
    rows, columns = ((side + 16) % 32 - 16 for side in (places // 32, places % 32))
    period = 32 / (rows.square() + columns.square()).double().sqrt()
    angle = torch.atan2(rows.abs().double(), columns.abs().double()).rad2deg()
    width, orientation = name.split("-")
    assert (period / PERIODS[width]).median() == pytest.approx(1, abs=0.15)
    wanted = {"upright": 0, "diagonal": 45, "level": 90}[orientation]
    assert angle.median().item() == pytest.approx(wanted, abs=12)
    assert orientation in TANGENTS
