"""The page of runs: names, states and curves."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.fabricated import make_run, make_study_folder, record
from vitcli.plugins.page.page import collect
from vitcli.runner.files import commit_json, readable_json
from vitcli.runner.run.compare import short_setting
from vitcli.runner.run.folder import FILES, RUNS

pytestmark = pytest.mark.usefixtures("here")


def collected(folder: Path = RUNS) -> dict[str, Any]:
    data = collect(folder)
    return json.loads(json.dumps(data, allow_nan=False))


def runs(**options: Any) -> dict[str, dict[str, Any]]:
    return {run["name"]: run for run in collected(**options)["runs"]}


def test_a_study_comes_with_its_progress():
    make_run(0, folder=RUNS / "older", meta={"started": "2020-01-01T00:00:00Z"})
    finished = dict.fromkeys(("no-ffn/seed0", "full/seed0"), "finished")
    make_study_folder(finished | {"full/seed1": "missing"})
    data = collected()
    names = [run["name"] for run in data["runs"]]
    assert names == ["parts/full/seed0", "parts/no-ffn/seed0", "older"]
    (study,) = data["studies"]
    assert study["progress"] == "3 trials: 2 finished, 1 missing"


def test_seeds_of_one_folder_share_a_variant_and_other_folders_do_not():
    make_run(0)
    make_run(1)
    make_run(0, folder=RUNS / "pets")
    seeds = [f"quickstart/train/seed{seed}" for seed in (0, 1)]
    variants = {name: run["variant"] for name, run in runs().items()}
    assert variants == dict.fromkeys(seeds, "quickstart/train") | {"pets": "pets"}
    assert [*runs(folder=RUNS / "quickstart/train/seed0")] == ["quickstart/train/seed0"]
    found = runs(folder=RUNS / "quickstart/train")
    assert [run["variant"] for run in found.values()] == [*found] == ["seed0", "seed1"]


def test_configurations_hold_what_differs_from_the_defaults_of_their_model():
    make_run(0, folder=RUNS / "vit", changes={"model.depth": 7})
    make_run(0, folder=RUNS / "swin", experiment="cifar10-swin")
    make_run(0, folder=RUNS / "pretrained", changes={"pretrain.task.name": "mae"})
    data = collected()
    own = {run["name"]: run["config"] for run in data["runs"]}
    defaults = {run["name"]: data["defaults"][run["kind"]] for run in data["runs"]}
    assert own["vit"]["model.depth"] == 7
    assert "model.depth" not in defaults["swin"]
    assert defaults["vit"]["model.mlp_dim"] is None
    for name in own:
        assert not own[name].keys() & {"seed", "data.class_names", *defaults[name]}
    assert not [field for field in own["vit"] | defaults["vit"] if field.startswith("pretrain.")]


def test_a_setting_has_four_digits_a_short_name_of_its_own_and_no_folder():
    fields = ("model.img_size", "optim.name", "model.seed", "model.wide")
    shown = ["img_size=4", "optim.name=4", "model.seed=4", "model.wide=4"]
    assert [short_setting(field, 4) for field in fields] == shown
    changes = {"optim.lr": 0.0011781448719376517, "data.name": "imagefolder:/home/me/my pets"}
    run = make_run(0, folder=RUNS / "x", changes=changes)
    run.set_status("failed", 0, "/home/me/acme/a.png: cannot be read")
    (found,) = runs().values()
    assert "optim.lr=0.001178" in found["settings"]
    assert found["reason"] == "a.png: cannot be read"
    text = json.dumps(collected())
    assert "imagefolder:my pets" in text
    assert "/home/me" not in text


@pytest.mark.parametrize("value", [7, -1e308, 10**400, True, [], {"a": 1}, "\x1b\ud800", ["x"]])
def test_values_of_any_type_in_any_file_are_shown_or_left_out(value):
    """A run's files may come from anybody."""
    run = make_run(0, folder=RUNS / "x")
    for name in FILES:
        if name.endswith(".json"):
            known = readable_json(run.path / name)
            known |= {"typed": [], "sessions": [], "batch_size_shrunk_from": 1}
            kept = {"state", "step"} if name == "status.json" else set()
            commit_json(run.path / name, {k: v if k in kept else value for k, v in known.items()})
    run.set_metrics([{"step": 800, "epoch": 1, "test_accuracy": value, "lr": 0.1}])
    (found,) = runs().values()
    assert found["commit"] in ("", "\\x1b\\ud800")
    is_sound = "metrics.jsonl" not in found["reason"]
    assert found["curves"].get("lr") == ([[1], [0.1]] if is_sound else None)


@pytest.mark.parametrize(
    "plan",
    [
        *({}, {"study": 1, "trials": {}}, {"study": "x", "trials": [1]}, []),
        {"study": "x", "trials": {"x" * 5000: {"variant": "v"}}},
    ],
)
def test_a_damaged_plan_is_no_study(plan):
    make_run(0, folder=RUNS / "x/full/seed0")
    commit_json(RUNS / "x/plan.json", plan)
    assert collected()["studies"] == []


def test_curves_hold_every_number_of_every_epoch():
    run = make_run(0, folder=RUNS / "x")
    run.set_metrics([record(epoch, 0.5) | {"other": 1.0} for epoch in range(1, 302)])
    (found,) = runs().values()
    assert {*found["curves"]} >= {"test_accuracy", "train_loss", "lr"}
    assert "other" not in found["curves"]
    epochs, values = found["curves"]["train_loss"]
    assert epochs == [*range(1, 302)]
    assert values[-1] == pytest.approx(1 / 301, rel=1e-4)
