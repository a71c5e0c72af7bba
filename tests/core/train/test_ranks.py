"""A training on two ranks takes the steps of one process: tasks, layers, augmentation, optimisers.

``tests/core/ranked.py`` trains on the ranks. Its processes train many cases each.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.core import ranked
from tests.core.trainings import data_set
from tests.patience import HANG
from vitcli.core.across import AcrossRanks
from vitcli.core.objectives.fusion.fusion import Fusion
from vitcli.core.objectives.objective import task_class
from vitcli.core.ranks import ALONE, GroupRanks

ROOT = Path(__file__).parents[3]
QUICK = (
    *ranked.SMALL,
    "mixing in parts",
    "dropout in parts",
    "batch norm",
    "batch norm of sgd",
    "cross",
)


def on_ranks(names: tuple[str, ...], folder: Path, size: int = 2) -> list[dict]:
    """Return the scalars of cases, from each rank."""
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
    return on_ranks(QUICK, tmp_path_factory.mktemp("quick") / "ranks")


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
    names = ("mixing in parts", "dropout", "clip", "batch norm", "dino", "lejepa")
    found = on_ranks(names, tmp_path / "four", size=4)
    for name in names:
        check(found, name)


def group(rank: int, size: int) -> GroupRanks:
    """Return ranks without a process group."""
    ranks = GroupRanks.__new__(GroupRanks)
    ranks.rank, ranks.size = rank, size
    return ranks


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("augment", [{}, ranked.MIXES])
def test_the_rows_of_the_ranks_make_the_batch(augment, parts):
    changes = {"augment": augment, "train": {"accumulate": parts}}
    spec = ranked.spec_of(changes)
    build = task_class(spec)
    task = build(spec, build.make_module(spec))
    whole = next(task.batches(data_set(), 0))
    found = []
    for rank in range(4):
        task.ranks = group(rank, 4)
        found.append(next(task.batches(data_set(), 0)))
    for name, values in whole.items():
        each = [batch[name].chunk(parts) for batch in found]
        joined = torch.cat([each[rank][part] for part in range(parts) for rank in range(4)])
        assert joined.equal(values), name


def draws(rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (
        torch.rand(len(rows), 1),
        torch.nn.functional.dropout(rows, 0.4),
        torch.rand_like(rows),
        torch.randn_like(rows.contiguous()),
    )


def test_draws_of_a_layer_are_the_rows_of_the_draws_of_one_process():
    x, found = torch.ones(8, 30, 5).transpose(1, 2), []
    torch.manual_seed(1)
    whole = draws(x)
    state = torch.get_rng_state()
    for rank in range(2):
        torch.manual_seed(1)
        with AcrossRanks(rank, 2):
            rows = x[4 * rank : 4 * rank + 4]
            found.append(draws(rows))
        assert torch.get_rng_state().equal(state)
    for values, parts in zip(whole, zip(*found, strict=True), strict=True):
        assert torch.cat(parts).equal(values)


def test_a_generator_of_its_own_draws_for_its_rows_alone():
    with AcrossRanks(1, 2):
        drawn = torch.rand(4, 2, generator=torch.Generator().manual_seed(3))
    assert drawn.equal(torch.rand(4, 2, generator=torch.Generator().manual_seed(3)))


def test_a_single_process_exchanges_nothing():
    rows, scalars = torch.ones(2), {"loss": torch.ones(())}
    assert ALONE.gather(rows) is rows
    assert ALONE.mean(rows) is rows
    assert ALONE.average(list, scalars) is scalars
    assert ALONE.agree(15) == 15
    assert ALONE.own_batch(scalars, 3, lambda made: made) is scalars


def fusion(size: int, **fields) -> Fusion:
    changes = ranked.of_task("fusion", fields)
    spec = ranked.spec_of(changes)
    task = Fusion(spec, Fusion.make_module(spec))
    task.ranks = group(0, size)
    return task


@pytest.mark.parametrize("modalities", ["both", "image", "sound"])
def test_the_rows_of_the_ranks_without_a_modality_are_those_of_the_batch(modalities):
    task = fusion(4, modality_dropout=0.6, modalities=modalities)
    if modalities != "both":
        task = fusion(4, modalities=modalities)
    found = [task.own_alone(4, rank) for rank in range(4)]
    assert tuple(map(sum, zip(*found, strict=True))) == task.alone(16)
    assert found[0][1] >= found[-1][1]
    assert found[0][0] <= found[-1][0]


def test_ranks_without_a_pair_are_refused_by_name():
    fusion(2, modality_dropout=0.3).check_ranks()
    with pytest.raises(ValueError, match=r"task.modality_dropout: .* no pair .*; start fewer"):
        fusion(4, modality_dropout=0.6).check_ranks()
