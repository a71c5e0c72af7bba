"""The document of several runs of one experiment with different seeds."""

import shlex
from pathlib import Path

import pytest

from tests.fabricated import make_run
from vitcli.runner.errors import ConfigError, InputError, UserError
from vitcli.runner.experiment.config import load_experiment, parse_sets
from vitcli.runner.study.repeated_runs import collect_runs
from vitcli.runner.study.table import read_document, to_json

in_a_folder = pytest.mark.usefixtures("here")


@in_a_folder
def test_the_document_is_that_of_a_study_with_one_row():
    runs = [make_run(1, accuracy=0.75, meta={"dirty": True}), make_run(0, accuracy=0.5)]
    doc = collect_runs([*runs, make_run(2, state="diverged")])
    assert doc.command == "for seed in 0 1 2; do vitcli train quickstart --seed $seed; done"
    assert (doc.name, doc.date, doc.dirty) == ("quickstart", "2026-11-20", True)
    assert (doc.data, doc.data_hash, doc.num_test, doc.epochs) == ("scenes", "d" * 64, 2000, 8)
    assert (doc.num_comparisons, doc.base_config["train.epochs"]) == (0, 8)
    (row,) = doc.rows
    assert [trial.state for trial in row.trials] == ["finished", "finished", "diverged"]
    assert {trial.seed: trial.test_score for trial in row.trials} == {0: 0.5, 1: 0.75, 2: None}
    assert read_document(to_json(doc)) == doc, "written as any study is"


@in_a_folder
@pytest.mark.parametrize(
    ("other", "error", "named"),
    [
        ({"state": "interrupted"}, InputError, "vitcli train --resume quickstart/train/seed1"),
        ({"experiment": "cifar10-tiny", "folder": Path("runs/x")}, ConfigError, ": experiment"),
        ({"meta": {"data_hash": "e" * 64, "hardware": "x"}}, ConfigError, ": data hash, hardware"),
        ({"result": {"precision": "bf16", "kernels": "x"}}, ConfigError, ": precision, kernels"),
        ({"changes": {"model.depth": 2, "optim.lr": 0.1}}, ConfigError, ": model.depth, optim.lr"),
        ({"seed": 0, "folder": Path("runs/again")}, ConfigError, "same seed"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_runs_that_are_unfinished_or_differ_in_more_than_the_seed_are_refused(other, error, named):
    first = make_run(0)
    with pytest.raises(error, match=named):
        collect_runs([first, make_run(**{"seed": 1} | other)])
    for alone in ({"state": "diverged"}, {"meta": {"experiment": "of no file"}}):
        with pytest.raises(UserError):
            collect_runs([make_run(2, **alone)])


@in_a_folder
def test_the_command_gives_the_same_configuration_again():
    changes = {"model.norm": "rms_norm", "model.layer_scale_init": 1e-5, "optim.nesterov": True}
    changes |= {"data.mean": [0.4914, 0.4822, 0.4465], "data.std": [0.2023, 0.1994, 0.201]}
    changes["optim.max_grad_norm"] = None
    run = make_run(4, changes=changes, meta={"typed": ["mean", "std"]})
    words = shlex.split(collect_runs([run]).command)
    sets = [word for flag, word in zip(words[3:-2:2], words[4:-2:2], strict=True) if flag == "-s"]
    again, wanted = (load_experiment("quickstart", c).spec for c in (parse_sets(sets), changes))
    assert (words[-2:], again) == (["--seed", "4"], wanted)


def test_the_document_has_no_path_of_this_machine(here):
    changes = {"data.name": f"imagefolder:{here}/flowers", "train.init": f"{here}/runs/other"}
    text = to_json(collect_runs([make_run(0, changes=changes)]))
    assert str(here) not in text
    assert "imagefolder:flowers" in text
    assert "train.init=other" in text
