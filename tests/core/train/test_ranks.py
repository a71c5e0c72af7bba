"""A training on two ranks takes the steps of one process: tasks, layers, augmentation, optimisers.

``tests/core/ranked.py`` trains on the ranks. Its processes train many cases each.
"""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.core import ranked
from tests.core.specs import build
from tests.patience import HANG
from vitcli.core.nn.norm import FrozenStatistics, synchronise_batch_norms
from vitcli.runner.errors import ConfigError
from vitcli.runner.train.build import synchronise

ROOT = Path(__file__).parents[3]
QUICK = (*ranked.SMALL, "mixing in parts", "cross")
RECOMPUTED = "dropout recomputed"
"""A case that is not quick: to recompute blocks, each process imports torch's compiler."""
DRAWN = [name for name in ranked.DRAWN if name != RECOMPUTED]


def on_ranks(names: tuple[str, ...], folder: Path, size: int = 2) -> list[dict]:
    folder.mkdir()
    words = [sys.executable, "-m", "tests.core.ranked"]
    started = [
        subprocess.Popen([*words, str(rank), str(size), str(folder), *names], cwd=ROOT)
        for rank in range(size)
    ]
    assert [process.wait(HANG) for process in started] == [0] * size
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(size)]


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    names = (*QUICK, *DRAWN)
    return on_ranks(names, tmp_path_factory.mktemp("quick") / "ranks")


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    names = tuple(name for name in ranked.CASES if name not in QUICK)
    return on_ranks(names, tmp_path_factory.mktemp("others") / "ranks")


def check(found: list[dict], name: str) -> None:
    assert all(rank[name] == found[0][name] for rank in found), "all ranks report the same"
    one = ranked.train(ranked.CASES[name])
    assert [*found[0][name]] == [*one]
    for scalar, values in one.items():
        wanted = pytest.approx(values, rel=1e-5, abs=1e-5)
        assert found[0][name][scalar] == wanted, scalar


@pytest.mark.parametrize("name", QUICK)
def test_two_ranks_take_the_steps_of_one_process(quick, name):
    check(quick, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in ranked.CASES if name not in QUICK])
def test_two_ranks_take_the_steps_of_one_process_with(others, name):
    check(others, name)


@pytest.mark.slow
def test_four_ranks_take_the_steps_of_one_process(tmp_path):
    names = ("mixing in parts", "clip", "dino", "late")
    found = on_ranks(names, tmp_path / "four", size=4)
    for name in names:
        check(found, name)


def check_drawn(found: list[dict], name: str) -> None:
    one, other = (rank[name] for rank in found)
    assert one.pop("own draw") != other.pop("own draw")
    assert one == other
    assert all(map(math.isfinite, one["loss"]))
    assert one["loss"] != ranked.train(ranked.DRAWN[name])["loss"]


@pytest.mark.parametrize("name", DRAWN)
def test_ranks_draw_numbers_of_their_own_and_keep_equal_weights(quick, name):
    """``check_weights`` of the ranks refuses others."""
    check_drawn(quick, name)


@pytest.mark.ci
def test_ranks_draw_numbers_of_their_own_also_where_blocks_are_recomputed(tmp_path):
    check_drawn(on_ranks((RECOMPUTED,), tmp_path / "ranks"), RECOMPUTED)


def test_batch_norms_become_those_of_all_ranks_with_the_same_tensors():
    """On a CPU, only an evaluation can be compared."""
    model = build(norm="batch_norm", patch_embed="conv_stem").eval()
    before, images = dict(model.state_dict()), torch.randn(4, 3, 16, 16).double()
    outputs, norms = model(images), sum("running_mean" in name for name in before)
    synchronise_batch_norms(model)
    assert torch.equal(model(images), outputs)
    assert model.state_dict().keys() == before.keys()
    assert norms == sum(isinstance(part, torch.nn.SyncBatchNorm) for part in model.modules())
    assert norms > len(model.blocks)
    with FrozenStatistics(model):  # SyncBatchNorm needs the counter
        assert all(torch.is_tensor(each) for each in model.state_dict().values())
    assert all(map(torch.equal, model.state_dict().values(), before.values()))


def test_a_batch_norm_on_ranks_of_a_cpu_is_refused_by_name():
    with pytest.raises(ConfigError, match=r"batch norm \(blocks.*\) needs GPUs on several"):
        synchronise(build(norm="batch_norm"), torch.device("cpu"))
