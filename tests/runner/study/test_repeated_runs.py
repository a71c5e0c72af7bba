"""Result files of repeated runs: their configuration, data and command, without mixing runs."""

import shlex
from pathlib import Path

import pytest

from tests.fabricated import make_run
from vitcli.runner.errors import ConfigError, InputError, ResourceError
from vitcli.runner.experiment.config import load_experiment, parse_set, parse_sets
from vitcli.runner.experiment.yaml_text import format_value
from vitcli.runner.study.repeated_runs import collect_runs, write
from vitcli.runner.study.table import read_document, to_json
from vitcli.runner.text import portable

pytestmark = pytest.mark.usefixtures("here")


def test_the_document_has_every_field():
    document = collect_runs([make_run(1, accuracy=0.75), make_run(0, accuracy=0.5)])
    found = document.model_dump(mode="json")
    rows = found.pop("rows")
    assert found == {
        "name": "quickstart",
        "question": "",
        "command": "for seed in 0 1; do vitcli train quickstart --seed $seed; done",
        "commits": ["c" * 40],
        "dirty": False,
        "inexact": [],
        "date": "2026-11-20",
        "hardware": ["AMD EPYC, 2 threads"],
        "torch": ["2.15.0"],
        "precision": ["fp32"],
        "kernels": [],
        "threads": 1,
        "data": "scenes",
        "data_hash": "d" * 64,
        "num_train": None,
        "num_test": 2000,
        "epochs": 8,
        "num_comparisons": 0,
        "base_config": found["base_config"],
        "reference": None,
        "same_setting": False,
    }
    assert found["base_config"]["train.epochs"] == 8
    assert (rows[0]["variant"], rows[0]["parameters"]) == ("baseline", 140618)
    assert [trial["seed"] for trial in rows[0]["trials"]] == [0, 1]
    assert [trial["test_accuracy"] for trial in rows[0]["trials"]] == [0.5, 0.75]
    assert read_document(to_json(document)) == document, "written as any study is"


def test_one_dirty_run_makes_the_document_dirty():
    assert collect_runs([make_run(0), make_run(1, meta={"dirty": True})]).dirty


def test_a_diverged_seed_is_a_result():
    document = collect_runs([make_run(0), make_run(1, state="diverged")])
    trials = document.rows[0].trials
    assert [trial.state for trial in trials] == ["finished", "diverged"]
    assert trials[1].test_accuracy is None
    assert trials[1].epochs == 3
    with pytest.raises(InputError, match="all of them diverged"):
        collect_runs([make_run(1, state="diverged")])


@pytest.mark.parametrize("state", ["running", "interrupted", "failed"])
def test_an_unfinished_run_is_refused_with_what_to_type(state):
    with pytest.raises(InputError, match="vitcli train --resume quickstart/train/seed1"):
        collect_runs([make_run(0), make_run(1, state=state)])


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"experiment": "cifar10-tiny", "folder": Path("runs/x")}, "experiment"),
        ({"meta": {"data_hash": "e" * 64}}, "data hash"),
        ({"meta": {"commit": "e" * 40}}, "commit"),
        ({"meta": {"hardware": "another"}}, "hardware"),
        ({"meta": {"torch": "2.11.0"}}, "torch"),
        ({"result": {"precision": "bf16"}}, "precision"),
        ({"result": {"kernels": "native"}}, "kernels"),
        ({"changes": {"model.depth": 2, "optim.lr": 0.1}}, "model.depth, optim.lr"),
        ({"changes": {"train.limit_batches": 2}}, "train.limit_batches"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_runs_that_differ_in_more_than_the_seed_are_refused(other, named):
    first = make_run(0)
    with pytest.raises(ConfigError, match=f"differ in more than the seed: {named}"):
        collect_runs([first, make_run(1, **other)])


def test_the_same_seed_twice_is_refused():
    with pytest.raises(ConfigError, match="the same seed"):
        collect_runs([make_run(0), make_run(0, folder=Path("runs/again"))])


@pytest.mark.parametrize("file", ["meta.json", "result.json"])
def test_a_run_without_its_files_is_refused(file):
    run = make_run(0)
    (run.path / file).unlink()
    with pytest.raises(InputError, match=f"its {file} is missing or damaged"):
        collect_runs([run])


CHANGES = {
    "model.depth": 2,
    "model.norm": "rms_norm",
    "model.layer_scale_init": 1e-5,
    "model.pos_embed": "none",
    "data.mean": [0.4914, 0.4822, 0.4465],
    "data.std": [0.2023, 0.1994, 0.201],
    "data.augment.flip": "random",
    "optim.max_grad_norm": None,
    "optim.nesterov": True,
    "train.ema_decay": 0.999,
}


def test_the_command_gives_the_same_configuration_again():
    run = make_run(4, changes=CHANGES)
    words = shlex.split(collect_runs([run]).command)
    assert words[:3] == ["vitcli", "train", "quickstart"]
    assert words[-2:] == ["--seed", "4"]
    sets = [word for flag, word in zip(words[3:-2:2], words[4:-2:2], strict=True) if flag == "-s"]
    typed = parse_sets(sets)
    again = load_experiment("quickstart", typed).spec.replace(seed=4)
    wanted = load_experiment("quickstart", CHANGES).spec.replace(seed=4)
    assert again == wanted
    assert len(sets) == len(CHANGES)


def test_an_experiment_without_a_file_is_refused():
    with pytest.raises(ConfigError, match="put its file into experiments/"):
        collect_runs([make_run(0, meta={"experiment": "mine"})])


def test_the_document_has_no_path_of_this_machine(here):
    changes = {"data.name": f"imagefolder:{here}/flowers", "train.init": f"{here}/runs/other"}
    text = to_json(collect_runs([make_run(0, changes=changes)]))
    assert str(here) not in text
    assert "imagefolder:flowers" in text
    assert "train.init=other" in text


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ("/home/me/flowers", "flowers"),
        ("imagefolder:/home/me/flowers", "imagefolder:flowers"),
        ("imagefolder:~/flowers", "imagefolder:flowers"),
        ("imagefolder:pictures/flowers", "imagefolder:pictures/flowers"),
        ("shapes", "shapes"),
        (3, 3),
    ],
)
def test_only_absolute_paths_are_shortened(value, kept):
    assert portable(value) == kept


@pytest.mark.parametrize(
    "value", [3, 1e-5, 0.1, 1e16, None, True, "cls", "true", "3", "1e3", "a b", "", (1, 2), "a: b"]
)
def test_set_reads_back_formatted_values(value):
    back = parse_set(f"field={format_value(value)}")["field"]
    assert back == (list(value) if isinstance(value, tuple) else value)
    assert type(back) is (list if isinstance(value, tuple) else type(value))


def test_a_path_that_cannot_be_written_is_an_error(here):
    (here / "file").touch()
    with pytest.raises(ResourceError, match="cannot be written"):
        write(collect_runs([make_run(0)]), here / "file" / "result.json")
