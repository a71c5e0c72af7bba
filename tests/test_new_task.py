"""A task that is added to one table at run time can do all that the shipped one can."""

import json
import os
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests import denoising, new_rows
from tests.test_new_rows import rendered
from vitcli.cli.main import app
from vitcli.core.spec import TASKS
from vitcli.runner.errors import ConfigError
from vitcli.runner.evaluate.weights import encoder_weights, load_model
from vitcli.runner.experiment.config import load_experiment
from vitcli.runner.run.folder import RunDir
from vitcli.runner.study.definition import load_study
from vitcli.runner.train.start import Request, start

ROOT = Path(__file__).parents[1]
DENOISE = {"task.name": "denoise", "model.drop_path": 0.1}


@pytest.fixture
def added(monkeypatch) -> None:
    """The row, until the test ends."""
    monkeypatch.setitem(TASKS, "denoise", denoising.ROW)


def vitcli(command: str) -> str:
    done = CliRunner().invoke(app, shlex.split(command))
    assert done.exit_code == 0, done.output
    return done.stdout


def test_without_the_row_its_name_is_refused(tiny):
    """The control: the row comes from this test and nowhere else."""
    with pytest.raises(ConfigError, match=r"task.name: should be 'classify'.*, got 'denoise'"):
        load_experiment(str(tiny), DENOISE)


@pytest.mark.usefixtures("added")
def test_its_best_checkpoint_has_the_smallest_error(tiny):
    changes = DENOISE | {"data.val_split": 16, "train.ema_decay": None}
    done = start(load_experiment(str(tiny), changes), Request(output=Path("run")))
    errors = {record["val_error"]: record["step"] for record in done.run.metrics()}
    assert done.result["best_val_error"] == min(errors)
    assert done.result["best_val_step"] == errors[min(errors)]


@pytest.mark.usefixtures("added")
def test_its_run_is_measured_verified_listed_and_looked_into(tiny):
    vitcli(f"train {tiny} -s task.name=denoise -o run")
    error = json.loads(Path("run/result.json").read_text())["test_error"]
    assert json.loads(vitcli("eval run --json"))["test_error"] == pytest.approx(error, abs=1e-6)
    assert f"error       {error:.4f}" in vitcli("eval run")
    assert "damaged" not in vitcli("runs verify run")
    assert load_model("run").state_dict().keys() == encoder_weights(RunDir(Path("run"))).keys()


@pytest.mark.usefixtures("added")
def test_its_reports_show_its_error_and_no_accuracy(tiny):
    errors = {}
    for name, epochs in (("long", 4), ("short", 1)):
        vitcli(f"train {tiny} -s task.name=denoise --epochs {epochs} -o runs/{name}")
        result = json.loads(Path(f"runs/{name}/result.json").read_text())
        errors[name] = result["test_error"]
    best = min(errors, key=lambda name: errors[name])
    assert f"error {errors[best]:.4f}" in vitcli("runs ls")
    (listed,) = json.loads(vitcli("runs ls --top 1 --json"))
    assert (listed["name"], listed["test_error"]) == (best, errors[best])
    assert listed["test_accuracy"] is None
    assert re.search(r"^test_error +\S+ +\S+ +\S+$", vitcli("runs diff long short"), re.M)
    head, line = vitcli("eval long --format csv").splitlines()
    assert (head, line.split(",")[0]) == ("name,value", "test_error")
    assert float(line.split(",")[1]) == pytest.approx(errors["long"], abs=1e-6)
    assert "class" not in vitcli("eval long --format md")
    (drawn,) = json.loads(vitcli("visualize long --num-images 4 --json"))
    assert drawn["test_error"] == errors["long"]
    assert {"curves", "heads"} <= drawn["files"].keys()
    refused = {name for name, why in drawn["skipped"].items() if "does not classify" in why}
    assert refused == {"confusion", "mistakes", "logit-lens", "faithfulness", "explorer"}
    page = Path("figures/index.html").read_text()
    assert f"error {errors['long']:.4f}" in page
    assert "Loss and error by epoch" in page


@pytest.mark.usefixtures("added")
def test_results_of_different_tasks_are_not_sorted_together(tiny):
    for task in ("denoise", "classify"):
        vitcli(f"train {tiny} -s task.name={task} --epochs 1 -o runs/{task}")
    listed = vitcli("runs ls")
    assert re.search(r"error \d\.\d{4} ", listed)
    assert re.search(r"accuracy \d+\.\d\d % ", listed)
    done = CliRunner().invoke(app, ["runs", "ls", "--top", "1"])
    assert done.exit_code == 2
    assert "different tasks cannot be compared (classify, denoise)" in done.stderr


@pytest.mark.usefixtures("added")
def test_a_study_of_errors_takes_no_reference_in_percent(tiny):
    Path("mine.yaml").write_text(
        f"base: {tiny}\ntask: {{name: denoise}}\nseeds: [0]\n"
        "variants: {base: {}, no-ffn: {model.ffn: none}}\n"
        "reference: {source: a paper, rows: {base: {accuracy: 93.1}}}\n"
    )
    with pytest.raises(ConfigError, match="'denoise' measures error; remove the reference"):
        load_study("mine.yaml")


@pytest.mark.usefixtures("added")
def test_its_training_is_estimated(tiny):
    found, plain = (
        json.loads(vitcli(f"train {tiny} {change} --dry-run --json --device cpu"))
        for change in ("-s task.name=denoise", "")
    )
    assert found["estimated_seconds"] > 0
    channels, patch, width = 3, 4, found["config"]["model"]["embed_dim"]
    decoder = (width + 1) * channels * patch**2
    assert found["parameters"] - plain["parameters"] == decoder


def test_it_is_ablated(tiny, added, monkeypatch):
    """The workers of a study are other processes; a plug-in on their path adds the row there."""
    new_rows.write_plugin(Path("plugin"), "tests.denoising")
    paths = [str(Path("plugin").resolve()), str(ROOT), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    Path("mine.yaml").write_text(
        "question: does the FFN help to find noise?\n"
        f"base: {tiny}\ntask: {{name: denoise}}\nseeds: [0, 1]\n"
        "variants: {base: {}, no-ffn: {model.ffn: none}}\n"
    )
    assert "| error |" in vitcli("ablate mine.yaml --format md")
    document = json.loads(vitcli("ablate mine.yaml --table-only --format json"))
    for row, numbers in zip(document["rows"], document["statistics"], strict=True):
        errors = [trial["measured"]["test_error"] for trial in row["trials"]]
        assert numbers["error_mean"] == pytest.approx(sum(errors) / 2, abs=1e-4)
    assert document["task"] == "denoise"
    page = Path("runs/mine/report.html").read_text()
    trial = document["rows"][0]["trials"][0]["measured"]["test_error"]
    assert f'<td class="number">{trial:.4f}</td>' in page
    assert "Error after each epoch" in page
    assert "accuracy" not in page


@pytest.mark.usefixtures("added")
def test_it_is_in_the_schema_and_in_the_table_of_the_documentation():
    assert denoising.ROW.about in json.dumps(json.loads(vitcli("experiments schema"))["properties"])
    assert f"| `task.name` | `denoise` | {denoising.ROW.about} |  |" in rendered()


@pytest.mark.usefixtures("added")
def test_an_evaluation_can_be_limited(tiny, monkeypatch):
    monkeypatch.setattr("vitcli.core.data.batches.LIMITED", 5)
    vitcli(f"train {tiny} -s task.name=denoise -o run")
    assert json.loads(vitcli("eval run --json --limit-batches 2"))["num_images"] == 10


@pytest.mark.usefixtures("added")
def test_a_study_has_one_metric(tiny):
    Path("mine.yaml").write_text(
        f"base: {tiny}\nseeds: [0]\nvariants: {{base: {{}}, other: {{task.name: denoise}}}}\n"
    )
    with pytest.raises(ConfigError, match="task measures error, that of 'base' accuracy, %"):
        load_study("./mine.yaml")


def test_a_task_reports_its_loss():
    with pytest.raises(ValueError, match="contain 'loss'"):
        replace(denoising.ROW, reports=("error",))
