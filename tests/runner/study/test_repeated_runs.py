"""Result files of repeated runs: their configuration, data and command, without mixing runs."""

import shlex
from pathlib import Path

import pytest

from tests.fabricated import make_run
from vitcli.runner.errors import ConfigError, InputError, UserError
from vitcli.runner.experiment.config import load_experiment, parse_sets
from vitcli.runner.study.repeated_runs import collect_runs
from vitcli.runner.study.table import read_document, to_json

pytestmark = pytest.mark.usefixtures("here")


def test_the_document_is_that_of_a_study_with_one_row():
    runs = [make_run(1, accuracy=0.75, meta={"dirty": True}), make_run(0, accuracy=0.5)]
    document = collect_runs([*runs, make_run(2, state="diverged")])
    found = document.model_dump(mode="json")
    expected = {
        "name": "quickstart",
        "command": "for seed in 0 1 2; do vitcli train quickstart --seed $seed; done",
        "commits": ["c" * 40],
        "dirty": True,
        "date": "2026-11-20",
        "hardware": ["AMD EPYC, 2 threads"],
        "torch": ["2.15.0"],
        "precision": ["fp32"],
        "data": "scenes",
        "data_hash": "d" * 64,
        "num_test": 2000,
        "epochs": 8,
        "num_comparisons": 0,
    }
    assert found.items() >= expected.items()
    assert found["base_config"]["train.epochs"] == 8
    (row,) = document.rows
    assert (row.variant, row.parameters) == ("baseline", 140618)
    assert [(trial.seed, trial.state, trial.test_accuracy) for trial in row.trials] == [
        *((0, "finished", 0.5), (1, "finished", 0.75), (2, "diverged", None)),
    ]
    assert read_document(to_json(document)) == document, "written as any study is"


@pytest.mark.parametrize(
    ("other", "error", "named"),
    [
        *(
            ({"state": state}, InputError, "vitcli train --resume quickstart/train/seed1")
            for state in ("running", "interrupted", "failed")
        ),
        ({"experiment": "cifar10-tiny", "folder": Path("runs/x")}, ConfigError, ": experiment"),
        ({"meta": {"data_hash": "e" * 64}}, ConfigError, ": data hash"),
        ({"meta": {"commit": "e" * 40}}, ConfigError, ": commit"),
        ({"meta": {"hardware": "another"}}, ConfigError, ": hardware"),
        ({"meta": {"torch": "2.11.0"}}, ConfigError, ": torch"),
        ({"result": {"precision": "bf16"}}, ConfigError, ": precision"),
        ({"result": {"kernels": "native"}}, ConfigError, ": kernels"),
        ({"changes": {"model.depth": 2, "optim.lr": 0.1}}, ConfigError, ": model.depth, optim.lr"),
        ({"changes": {"train.limit_batches": 2}}, ConfigError, ": train.limit_batches"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_runs_that_are_unfinished_or_differ_in_more_than_the_seed_are_refused(other, error, named):
    first = make_run(0)
    with pytest.raises(error, match=named):
        collect_runs([first, make_run(1, **other)])


@pytest.mark.parametrize(
    "runs",
    [
        [{}, {"folder": Path("runs/again")}],  # the same seed twice
        [{"state": "diverged"}],
        [{"meta": {"experiment": "mine"}}],  # an experiment without a file
    ],
)
def test_runs_without_a_result_of_their_own_are_refused(runs):
    with pytest.raises(UserError):
        collect_runs([make_run(0, **each) for each in runs])


@pytest.mark.parametrize("file", ["meta.json", "result.json"])
def test_a_run_without_its_files_is_refused(file):
    run = make_run(0)
    (run.path / file).unlink()
    with pytest.raises(InputError, match=file):
        collect_runs([run])


CHANGES = {
    "model.depth": 2,
    "model.norm": "rms_norm",
    "model.layer_scale_init": 1e-5,
    "data.mean": [0.4914, 0.4822, 0.4465],
    "data.std": [0.2023, 0.1994, 0.201],
    "optim.max_grad_norm": None,
    "optim.nesterov": True,
}


def test_the_command_gives_the_same_configuration_again():
    words = shlex.split(collect_runs([make_run(4, changes=CHANGES)]).command)
    assert words[:3] == ["vitcli", "train", "quickstart"]
    assert words[-2:] == ["--seed", "4"]
    sets = [word for flag, word in zip(words[3:-2:2], words[4:-2:2], strict=True) if flag == "-s"]
    assert len(sets) == len(CHANGES)
    again, wanted = (load_experiment("quickstart", c).spec for c in (parse_sets(sets), CHANGES))
    assert again == wanted


def test_the_document_has_no_path_of_this_machine(here):
    changes = {"data.name": f"imagefolder:{here}/flowers", "train.init": f"{here}/runs/other"}
    text = to_json(collect_runs([make_run(0, changes=changes)]))
    assert str(here) not in text
    assert "imagefolder:flowers" in text
    assert "train.init=other" in text
