"""A task that is added to the table at run time, and measures an error instead of an accuracy.

``test_tasks.py`` says that it can do what the shipped tasks can; here are its reports.
"""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests import denoising
from tests.own_code import vitcli
from vitcli.core.spec import TASKS
from vitcli.runner.errors import ConfigError
from vitcli.runner.experiment.config import load_experiment
from vitcli.runner.study.definition import load_study
from vitcli.runner.train.start import Request, start


@pytest.fixture(autouse=True)
def _added(monkeypatch) -> None:
    """The row, until the test ends."""
    monkeypatch.setitem(TASKS, "denoise", denoising.ROW)


def test_reports_of_a_task_show_its_error_and_no_accuracy(tiny):
    errors = {}
    for name, epochs in (("long", 2), ("short", 1)):
        vitcli(f"train {tiny} -s task.name=denoise --epochs {epochs} -o runs/{name}")
        result = json.loads(Path(f"runs/{name}/result.json").read_text())
        errors[name] = result["test_error"]
    best = min(errors, key=lambda name: errors[name])
    assert f"error {errors[best]:.4f}" in vitcli("runs ls")
    (listed,) = json.loads(vitcli("runs ls --top 1 --json"))
    assert (listed["name"], listed["test_error"]) == (best, errors[best])
    assert listed["test_accuracy"] is None
    assert re.search(r"^test_error +\S+ +\S+ +\S+$", vitcli("runs diff long short"), re.M)
    assert "class" not in vitcli("eval long --format md")
    of_classes = ["confusion", "mistakes", "logit-lens", "faithfulness", "explorer"]
    (drawn,) = json.loads(vitcli(f"visualize long --what curves,{','.join(of_classes)} --json"))
    assert drawn["test_error"] == errors["long"]
    assert drawn["skipped"].keys() == {*of_classes}
    assert f"error {errors['long']:.4f}" in Path("figures/index.html").read_text()
    vitcli(f"train {tiny} --epochs 1 -o runs/other")
    assert re.search(r"accuracy \d+\.\d\d % ", vitcli("runs ls"))
    assert "different tasks cannot be compared (classify, denoise)" in vitcli("runs ls --top 1", 2)


def test_the_best_checkpoint_of_an_error_has_the_smallest(tiny):
    changes = {"task.name": "denoise", "data.val_split": 16, "train.ema_decay": None}
    done = start(load_experiment(str(tiny), changes), Request(output=Path("run")))
    errors = {record["val_error"]: record["step"] for record in done.run.metrics()}
    assert done.result["best_val_error"] == min(errors)
    assert done.result["best_val_step"] == errors[min(errors)]


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
