"""`vitcli runs ls` on fabricated folders: what differs, filters, orders."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import document
from tests.fabricated import make_run
from vitcli.cli.chosen import load_changed
from vitcli.runner.run.folder import RUNS, RunDir

pytestmark = pytest.mark.usefixtures("here")


def listed(*words: object) -> list[dict[str, Any]]:
    return document("runs", "ls", *words)["runs"]


def names(*words: object) -> list[str]:
    return [run["name"] for run in listed(*words)]


def make(name: str, order: int, **options: Any) -> RunDir:
    """Make a run whose status changed ``order`` seconds after the others."""
    run = make_run(int(name[-1]) if name[-1].isdigit() else 0, folder=RUNS / name, **options)
    os.utime(run.path / "status.json", (1e9 + order, 1e9 + order))
    return run


@pytest.fixture
def several() -> None:
    make("quickstart/train/seed10", 1, accuracy=0.3)
    make("quickstart/train/seed2", 2, accuracy=0.9)
    make("pets", 3, accuracy=0.6, changes={"data.name": "imagefolder:/home/me/my pets"})
    make("pets-long", 4, accuracy=0.1, state="interrupted")
    make("cifar10-tiny/train/seed0", 5, accuracy=0.2, experiment="cifar10-tiny")
    make("unmeasured", 6, state="failed").set_metrics([])
    make_run(folder=Path("moved/trial"))
    Path("link").symlink_to("runs/pets")


def test_filters_leave_out_other_runs(several):
    for words, found in (
        (["moved"], ["moved/trial"]),
        (["link", "runs/pets"], ["pets"]),
        (["pets*"], ["pets", "pets-long"]),
        (["pets"], ["pets"]),
        (["./runs/pets"], ["pets"]),
        (["runs/", "--state", "interrupted"], ["pets-long"]),
        (["quickstart"], ["quickstart/train/seed10", "quickstart/train/seed2"]),
        (["pets", "*seed2"], ["quickstart/train/seed2", "pets"]),
        (["--state", "interrupted"], ["pets-long"]),
        (["cifar10-*"], ["cifar10-tiny/train/seed0"]),
        (["nothing"], []),
    ):
        assert names(*words) == found, words


def test_runs_of_another_content_of_their_code_have_another_setting():
    for name, code in {"one": "1", "two": "2", "again": "2"}.items():
        path = make(name, 0).path / "config.yaml"
        hashes = {"part.py": 64 * code, "same.py": 64 * "3"}
        path.write_text(path.read_text().replace("code: {}", f"code: {json.dumps(hashes)}"))
    found = {run["name"]: run["differs"] for run in listed()}
    assert found["again"] == found["two"] == {"code.part.py": 8 * "2"} != found["one"]


@pytest.mark.seam
def test_sorting(several):
    by_date = names()
    assert by_date[0] == "quickstart/train/seed10"
    assert by_date[-1] == "unmeasured"
    by_name = ["cifar10-tiny/train/seed0", "pets", "pets-long", "quickstart/train/seed2"]
    assert names("--sort", "name") == [*by_name, "quickstart/train/seed10", "unmeasured"]
    by_accuracy = names("--sort", "accuracy")
    assert by_accuracy[:2] == ["quickstart/train/seed2", "pets"]
    assert by_accuracy[-2:] == ["pets-long", "unmeasured"]
    assert names("--top", 2) == by_accuracy[:2]
    assert names("--top", 2, "--sort", "date") == by_accuracy[:2]
    assert names("--top", 2, "--sort", "name") == ["pets", "quickstart/train/seed2"]


def test_a_validation_result_is_marked_and_sorted(several):
    made = {"test_accuracy": None, "test_loss": None, "val_accuracy": 0.7}
    make("trial-of-a-search", 7, result=made).set_metrics([])
    assert names("--sort", "accuracy")[1] == "trial-of-a-search"
    assert names("--top", 2)[1] == "trial-of-a-search"


def test_the_compute_of_a_run_is_that_of_all_its_trainings():
    costs = {"train_flops": 3.5e12, "pretrain_flops": 1e12, "teacher_train_flops": 5e11}
    make("with-all", 1, result=costs)
    make("older", 2)
    assert [run["flops"] for run in listed()] == [5e12, None]


def differs(name: str) -> dict[str, object]:
    (run,) = listed(name)
    return run["differs"]


def test_a_run_shows_what_differs_from_its_experiment():
    make("quickstart/train/seed3", 0)
    make("quickstart/train-1/seed0", 1, changes={"model.attention": "linformer"})
    changes = {"optim.name": "adamw", "model.depth": 6, "data.name": "cifar10"}
    make("mine3", 2, changes=changes | {"train.init": "pets"})
    assert differs("quickstart/train/seed3") == {}
    assert differs("quickstart/train-1/seed0") == {"model.attention": "linformer"}
    assert "data.name" not in differs("mine3")


def test_a_run_shows_what_it_started_from():
    """Also if its reference, the oldest run of an experiment without a file, started from it."""
    make("theirs", 0, meta={"imported": "vit.pt"})
    make("timms", 1, meta={"imported": "model.safetensors", "timm": "test_vit"})
    make("tuned", 2, changes={"train.init": "theirs"}, meta={"experiment": "gone"})
    make("plain", 3)
    found = {run["name"]: run["started_from"] for run in listed()}
    assert found == {"theirs": "vit.pt", "timms": "timm:test_vit", "tuned": "theirs", "plain": None}


@pytest.mark.parametrize(
    ("meta", "name"),
    [
        ({}, "quickstart"),
        ({"experiment": "ablation-quickstart", "variant": "no-ffn"}, "ablation-quickstart-no-ffn"),
        ({"experiment": "../elsewhere"}, "config"),
        ({"experiment": None}, "config"),
    ],
)
def test_the_experiment_of_a_runs_configuration_has_the_name_of_the_runs_experiment(meta, name):
    run = make("mine", 0, meta=meta)
    assert load_changed(str(run.path / "config.yaml"), {"optim.lr": 0.01}).name == name
    Path("config.yaml").write_text("base: quickstart")
    assert load_changed("config.yaml", {}).name == "config"


def test_a_trial_shows_what_differs_from_the_base_of_its_study():
    facts = {"experiment": "ablation-quickstart", "variant": "no-ffn"}
    base = {"model.embed_dim": 48, "model.depth": 3, "model.num_heads": 3, "train.epochs": 5}
    make("ablation-quickstart/no-ffn/seed0", 0, changes=base | {"model.ffn": "none"}, meta=facts)
    assert differs("*") == {"model.ffn": "none"}


def test_without_its_file_an_experiment_is_its_oldest_run():
    for order, depth in enumerate([2, 3]):
        make(f"depth{depth}", order, changes={"model.depth": depth}, meta={"experiment": "gone"})
    assert [differs("depth2"), differs("depth3")] == [{}, {"model.depth": 3}]
    Path("gone.yaml").write_text("base: quickstart\nmodel: {depth: 3}")
    assert [differs("depth2"), differs("depth3")] == [{"model.depth": 2}, {}]
