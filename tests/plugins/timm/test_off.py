"""Without the plugin, runs of timm's models are healthy, and what needs timm says so."""

from pathlib import Path

import pytest

import vitcli
from tests.cli.commands import printed, said
from vitcli import plugin
from vitcli.core.spec import FAMILIES
from vitcli.runner.experiment.own_code import missing_plugin
from vitcli.runner.run.folder import _parsed_before

NEEDED = "needs the plugin timm, which is off"


@pytest.fixture
def without_timm(monkeypatch):
    monkeypatch.setenv(plugin.VARIABLE, "no:timm")
    monkeypatch.setattr(FAMILIES, "data", {**FAMILIES.built_in})
    _parsed_before.clear()


def test_a_run_is_listed_and_says_what_it_needs(copy_of_run, request):
    model = {"model.family": "timm", "model.name": "test_vit", "data.resize": 32}
    run = copy_of_run(Path("run"), model | {"train.epochs": 1})
    request.getfixturevalue("without_timm")
    record = vitcli.load_run(run)
    assert (record.state, record.problems, record.reason) == ("finished", (), NEEDED)
    assert "test_vit" in printed("runs", "show", run)
    assert NEEDED in said(2, "eval", run)


@pytest.mark.parametrize(
    "words",
    [
        ("train", "quickstart", "--init", "timm:test_vit", "--dry-run"),
        ("train", "quickstart", "-s", "model.family=timm", "--dry-run"),
        ("attn-map", "timm:test_vit", "x.png"),
    ],
)
def test_a_command_that_needs_it_is_one_line(words, here, without_timm):
    assert NEEDED in said(2, *words)


@pytest.mark.parametrize("part", ["task.teacher", "pretrain"])
def test_the_model_of_a_teacher_or_a_pretraining_needs_it_too(part, without_timm):
    config: dict[str, object] = {"model": {"family": "timm"}}
    assert missing_plugin(config) == NEEDED
    for name in reversed(part.split(".")):
        config = {name: config}
    assert missing_plugin(config) == NEEDED
