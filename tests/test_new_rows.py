"""A row that is added to one table at run time can do all that the shipped rows can.

``test_tasks.py`` says so of a task; here are the reports of a task without an accuracy.
"""

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from tests import denoising, new_rows
from tests.cli import commands
from tests.same_run import assert_same_run
from tests.stopping import stop_after
from vitcli.core.spec import OPTIMIZERS, TASKS
from vitcli.core.spec.metrics import METRICS
from vitcli.core.spec.slots import ATTENTIONS
from vitcli.runner.errors import ConfigError, StoppedError
from vitcli.runner.experiment.config import load_experiment
from vitcli.runner.run.folder import RunDir
from vitcli.runner.study.definition import load_study
from vitcli.runner.train.start import Request, start

DENOISE = {"task.name": "denoise", "model.drop_path": 0.1}
ROWS = {"model.attention": "key_only", "optim.name": "sign"}


def vitcli(command: str, code: int = 0) -> str:
    found, out, talk = commands.vitcli(*shlex.split(command))
    assert found == code, talk
    return talk if code else out


@pytest.fixture
def added(monkeypatch) -> None:
    """The rows, until the test ends."""
    monkeypatch.setitem(TASKS, "denoise", denoising.ROW)
    monkeypatch.setitem(ATTENTIONS, "key_only", new_rows.ATTENTION)
    monkeypatch.setitem(OPTIMIZERS, "sign", new_rows.OPTIMIZER)


@pytest.mark.usefixtures("added")
@pytest.mark.parametrize(("field", "name"), ROWS.items())
def test_it_trains_and_resumes_to_the_same_bits(tiny, monkeypatch, field, name):
    experiment = load_experiment(str(tiny), {field: name, "train.accumulate": 2})
    calm = start(experiment, Request(output=Path("calm"))).run
    with monkeypatch.context() as patch:
        stop_after(patch, 7)
        with pytest.raises(StoppedError):
            start(experiment, Request(output=Path("stopped")))
    start(experiment, Request(output=Path("stopped"), resume=True))
    assert_same_run(calm, RunDir(Path("stopped")))


@pytest.mark.usefixtures("added")
@pytest.mark.parametrize(("field", "name"), ROWS.items())
def test_its_training_is_estimated(tiny, field, name):
    estimates = [
        json.loads(vitcli(f"train {tiny} {change} --dry-run --json --device cpu"))
        for change in (f"-s {field}={name}", "")
    ]
    ours, plain = estimates
    assert ours["estimated_seconds"] > 0
    difference = ours["parameters"] - plain["parameters"]
    saved = plain["estimated_memory_bytes"] - ours["estimated_memory_bytes"]
    if name == "key_only":
        assert difference == 2 * 16, "a vector for each of two heads in each of two layers"
    else:
        assert saved == 4 * plain["parameters"], "one number a parameter instead of AdamW's two"


@pytest.mark.usefixtures("added")
@pytest.mark.parametrize(("field", "name"), ROWS.items())
def test_it_is_in_the_schema(field, name):
    schema = json.loads(vitcli("experiments schema"))
    group, key = field.split(".")
    part = schema["properties"][group]
    spec = part["anyOf"][0] if "anyOf" in part else schema["$defs"]["OptimSpec"]
    found = {row.get("const"): row["description"] for row in spec["properties"][key]["oneOf"]}
    assert found[name] == {"key_only": new_rows.ATTENTION, "sign": new_rows.OPTIMIZER}[name].about


def test_a_metric_is_measured_stored_and_written(tiny, monkeypatch):
    vitcli(f"train {tiny} --epochs 1 -o plain")
    monkeypatch.setitem(METRICS, "first_class", new_rows.METRIC)
    vitcli(f"train {tiny} --epochs 1 -o run")
    value = json.loads(Path("run/result.json").read_text())["test_first_class"]
    assert json.loads(vitcli("eval run --json"))["first_class"] == pytest.approx(value)
    assert value > 0
    assert re.search(rf"first class +{100 * value:.4f} %", vitcli("eval run"))
    assert re.search(rf"test_first_class +{100 * value:.4f} %", vitcli("runs show run"))
    assert "first_class" not in vitcli("runs show plain")


@pytest.mark.usefixtures("added")
def test_reports_of_a_task_show_its_error_and_no_accuracy(tiny):
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
    assert "class" not in vitcli("eval long --format md")
    (drawn,) = json.loads(vitcli("visualize long --num-images 4 --json"))
    assert drawn["test_error"] == errors["long"]
    refused = {name for name, why in drawn["skipped"].items() if "does not classify" in why}
    assert refused == {"confusion", "mistakes", "logit-lens", "faithfulness", "explorer"}
    assert f"error {errors['long']:.4f}" in Path("figures/index.html").read_text()
    vitcli(f"train {tiny} --epochs 1 -o runs/other")
    assert re.search(r"accuracy \d+\.\d\d % ", vitcli("runs ls"))
    assert "different tasks cannot be compared (classify, denoise)" in vitcli("runs ls --top 1", 2)


@pytest.mark.usefixtures("added")
def test_the_best_checkpoint_of_an_error_has_the_smallest(tiny):
    changes = DENOISE | {"data.val_split": 16, "train.ema_decay": None}
    done = start(load_experiment(str(tiny), changes), Request(output=Path("run")))
    errors = {record["val_error"]: record["step"] for record in done.run.metrics()}
    assert done.result["best_val_error"] == min(errors)
    assert done.result["best_val_step"] == errors[min(errors)]


@pytest.mark.usefixtures("added")
def test_a_study_has_one_metric_and_takes_no_reference_in_percent(tiny):
    variants = "variants: {base: {}, other: {%s}}\n"
    head = f"base: {tiny}\nseeds: [0]\n"
    Path("mine.yaml").write_text(
        f"{head}task: {{name: denoise}}\n{variants % 'model.ffn: none'}"
        "reference: {source: a paper, rows: {base: {accuracy: 93.1}}}\n"
    )
    with pytest.raises(ConfigError, match="'denoise' measures error; remove the reference"):
        load_study("mine.yaml")
    Path("mine.yaml").write_text(head + variants % "task.name: denoise")
    with pytest.raises(ConfigError, match="task measures error, that of 'base' accuracy, %"):
        load_study("./mine.yaml")
    with pytest.raises(ValueError, match="contain 'loss'"):
        replace(denoising.ROW, reports=("error",))
