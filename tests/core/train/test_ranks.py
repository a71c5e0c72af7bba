"""A training on several ranks, by tests/core/ranked.py, takes the steps of one process."""

import json
import math
import subprocess
import sys
from functools import cache

import pytest
import torch

from tests.core import ranked
from tests.core.specs import build
from tests.patience import HANG
from vitcli.runner.errors import ConfigError
from vitcli.runner.train.build import refuse_batch_norm

RECOMPUTED = ("dropout recomputed",)
"""A case that is not quick: to recompute blocks, each process imports torch's compiler."""
DRAWN = tuple(name for name in ranked.DRAWN if name not in RECOMPUTED)
KNOWN = [name for name in ("mixing in parts", "cross") if name in ranked.CASES]
QUICK = (*ranked.SMALL, *KNOWN, *DRAWN)
OTHERS = tuple(name for name in ranked.CASES if name not in QUICK)
FOUR = tuple(name for name in ("mixing in parts", "clip", "dino", "late") if name in ranked.CASES)


@pytest.fixture(scope="module")
def on_ranks(tmp_path_factory):
    @cache
    def train(names: tuple[str, ...], size: int) -> list[dict]:
        folder = tmp_path_factory.mktemp("ranks")
        words = [sys.executable, "-m", "tests.core.ranked"]
        names = (str(size), str(folder), *names)
        started = [subprocess.Popen([*words, str(rank), *names]) for rank in range(size)]
        assert [process.wait(HANG) for process in started] == [0] * size
        return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(size)]

    return train


@pytest.mark.parametrize(
    ("name", "group", "size"),
    [
        *((name, QUICK, 2) for name in QUICK if name not in DRAWN),
        *(pytest.param(name, OTHERS, 2, marks=pytest.mark.slow) for name in OTHERS),
        *(pytest.param(name, FOUR, 4, marks=pytest.mark.slow) for name in FOUR),
    ],
)
def test_ranks_take_the_steps_of_one_process(on_ranks, name, group, size):
    first, *others = (report[name] for report in on_ranks(group, size))
    assert all(report == first for report in others)
    one = ranked.train(ranked.CASES[name])
    assert [*first] == [*one]
    for scalar, values in one.items():
        assert first[scalar] == pytest.approx(values, rel=1e-5, abs=1e-5), scalar


@pytest.mark.parametrize(
    ("name", "group"),
    [
        *((name, QUICK) for name in DRAWN),
        *(pytest.param(name, RECOMPUTED, marks=pytest.mark.ci) for name in RECOMPUTED),
    ],
)
def test_ranks_draw_numbers_of_their_own_and_keep_equal_weights(on_ranks, name, group):
    """``check_weights`` of the ranks refuses others."""
    one, other = (dict(report[name]) for report in on_ranks(group, 2))
    assert one.pop("own draw") != other.pop("own draw")
    assert one == other
    assert all(map(math.isfinite, one["loss"]))
    assert one["loss"] != ranked.train(ranked.DRAWN[name])["loss"]


@pytest.mark.parametrize(
    "module", [build(norm="batch_norm"), torch.nn.Sequential(torch.nn.BatchNorm2d(3))]
)
def test_a_batch_norm_on_several_ranks_is_refused_by_name(module):
    with pytest.raises(ConfigError, match=r"batch norm .*BatchNorm.* of one rank"):
        refuse_batch_norm(module)
