"""The seam: what a plugin adds is there with it, and not without it."""

import json
import os
import re
from dataclasses import fields
from pathlib import Path

import grimp
import pytest

import vitcli
from tests.cli.commands import printed, said, save_picture
from tests.fabricated import make_study_folder
from tests.plugin_rows import EVERY, has, of
from vitcli import plugin
from vitcli.cli.main import all_commands
from vitcli.core.spec import FAMILIES, TASKS
from vitcli.core.spec.task import TaskRow
from vitcli.plugin import Registry, load_target
from vitcli.runner.attn_map.explain import PAGES
from vitcli.runner.engines.engine import ENGINES
from vitcli.runner.evaluate.load import CLASSIFIERS
from vitcli.runner.evaluate.weights import start_sha256
from vitcli.runner.experiment import own_code
from vitcli.runner.run.folder import _parsed_before, find_run
from vitcli.runner.visualize.render import FIGURES
from vitcli.version import PACKAGE


@pytest.mark.parametrize("name", plugin.plugins())
def test_what_a_plugin_adds_can_be_imported(name):
    added = plugin.plugins()[name]
    for rows in added.rows.values():
        assert all(load_target(target) for target in rows.values())
    assert all(load_target(target) for target in added.commands.values())
    assert {*added.needs} <= plugin.plugins().keys()


def test_the_rows_of_the_core_know_every_plugin_and_miss_none():
    assert [*EVERY] == [path.parent.name for path in sorted(plugin.FOLDER.glob("*/plugin.py"))]
    assert all(map(has, EVERY))


SET_BY_VITCLI = {"package", "version", "problem", "modules"}


def test_each_hook_is_documented():
    """What a plugin states, and each table that it extends, stands on the page about plugins."""
    page = (Path(__file__).parents[2] / "docs/reference/plugins.md").read_text()
    sources = "".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    tables = set(re.findall(r'Registry\[.+?\]\("([^"]+)"\)', sources))
    tables |= set(re.findall(r'rows_of\("([^"]+)"\)', sources))
    assert tables == {*plugin.TABLES}
    stated = {field.name for field in fields(plugin.Plugin)} - SET_BY_VITCLI
    assert not {name for name in tables | stated if f"`{name}`" not in page}
    assert set(re.findall(r'with_plugins\("([^"]+)"\)', sources)) == {*plugin.DOORS}


def test_the_bundled_model_works_without_the_plugin_that_taught_it(here, monkeypatch):
    picture = save_picture("x.png", (32, 32))
    taught = printed("predict", "cifar10-pocket", picture), start_sha256(find_run("cifar10-pocket"))
    monkeypatch.setenv(plugin.VARIABLE, "no:distil")
    monkeypatch.setattr(TASKS, "data", {**TASKS.built_in})
    monkeypatch.setattr("vitcli.runner.run.folder._parsed_before", {})
    assert printed("predict", "cifar10-pocket", picture) == taught[0]
    assert start_sha256(find_run("cifar10-pocket")) == taught[1], "trials that start from it stay"


def test_plugins_import_only_those_that_they_need():
    graph = grimp.build_graph("vitcli")
    rooms = {name: f"vitcli.plugins.{name}" for name in plugin.plugins()}
    for name, added in plugin.plugins().items():
        others = [other for other in rooms if other not in (name, *added.needs)]
        for other in others:
            found = graph.find_shortest_chains(rooms[name], rooms[other], as_packages=True)
            assert not found, (name, other)


def test_without_a_plugin_its_rows_and_commands_and_what_needs_it_are_gone(monkeypatch):
    assert {"mae", "ssat"} <= {*TASKS}
    assert "explain" in all_commands()
    monkeypatch.setenv(plugin.VARIABLE, "no:mae, no:explain")
    table = Registry[TaskRow](TASKS.field)
    table |= TASKS.built_in
    assert "classify" in table
    assert not {"mae", "ssat"} & {*table}
    assert "explain" not in all_commands()
    assert "bench" in all_commands()
    rows = json.loads(printed("plugins", "--json"))["plugins"]
    states = {row["name"]: row["state"] for row in rows}
    assert states["mae"] == "switched off"
    assert "mae" in states["ssat"]
    assert states["clip"] == "on"


def test_a_switch_holds_for_one_command(monkeypatch):
    assert "needs the plugin explain" in said(2, "-p", "no:explain", "explain")
    assert "needs the plugin page" in said(2, "-p", "no:page", "runs", "page")
    assert not os.environ.get(plugin.VARIABLE)
    assert "no:nothing" in said(2, "-p", "no:nothing", "plugins")
    assert not os.environ.get(plugin.VARIABLE)
    monkeypatch.setenv(plugin.VARIABLE, "search")
    assert f"{plugin.VARIABLE} takes" in said(2, "plugins")


def test_the_next_command_has_no_option_of_a_plugin_that_is_off(monkeypatch):
    assert plugin.has_option("eval", "review")
    assert not plugin.has_option("predict", "review")
    monkeypatch.setenv(plugin.VARIABLE, "no:review")
    assert not plugin.has_option("eval", "review")


TIMM = "train quickstart --init timm:test_vit", "train quickstart -s model.family=timm"
NEEDS = [
    *of("exports", (CLASSIFIERS, "predict model.onnx x.png")),
    *of("distance", (FIGURES, "visualize run --what distance")),
    *of("embeddings", (FIGURES, "visualize run --what curves,filters")),
    *of("faithfulness", (FIGURES, "visualize run --what curves,faithfulness")),
    *of("live", (PAGES, "attn-map cifar10-pocket x.png --format html")),
    *of("ray", (ENGINES, "ablate --engine ray -j 2")),
    *of("timm", *((FAMILIES, f"{typed} --dry-run") for typed in TIMM)),
    *of("timm", (FAMILIES, "attn-map timm:test_vit x.png")),
    *of("mae", (TASKS, "train quickstart -s task.name=mae --dry-run")),
]


@pytest.mark.parametrize("case", NEEDS)
def test_what_a_plugin_adds_says_what_it_needs(here, request, monkeypatch, case):
    (table, typed), (name,) = case, request.node.get_closest_marker("plugin").args
    monkeypatch.setattr(table, "data", {**table.built_in})  # before the variable changes it
    monkeypatch.setenv(plugin.VARIABLE, f"no:{name}")
    for file in ("x.png", "model.onnx"):
        save_picture(file, (8, 8), format="PNG")
    assert f"needs the plugin {name}, which is off" in said(2, *typed.split())


@pytest.mark.plugin("faithfulness", "distance")
def test_a_plugin_that_is_off_with_another_one_names_that(here, monkeypatch):
    monkeypatch.setattr(FIGURES, "data", {**FIGURES.built_in})
    monkeypatch.setenv(plugin.VARIABLE, "no:distance")
    talk = said(2, *["visualize", "run", "--what", "faithfulness"])
    assert "needs the plugin faithfulness, which needs the plugin distance" in talk


@pytest.mark.plugin("timm")
@pytest.mark.parametrize("part", ["task.teacher", "pretrain"])
def test_the_model_of_a_teacher_or_a_pretraining_needs_it_too(part, monkeypatch):
    monkeypatch.setattr(FAMILIES, "data", {**FAMILIES.built_in})
    monkeypatch.setenv(plugin.VARIABLE, "no:timm")
    needed = "needs the plugin timm, which is off"
    config: dict[str, object] = {"model": {"family": "timm"}}
    assert own_code.missing_plugin(config) == needed
    for name in reversed(part.split(".")):
        config = {name: config}
    assert own_code.missing_plugin(config) == needed


@pytest.mark.parametrize("file", [*of("ray", "ray0.txt"), *of("slurm", "slurm-7_1.txt")])
def test_what_drivers_printed_is_removed_with_the_study(here, file):
    study = make_study_folder({"full/seed0": "finished"})
    (study / "logs").mkdir(exist_ok=True)
    (study / "logs" / file).touch()
    assert "not removed" not in said(0, "runs", "rm", study.name, "-y")


@pytest.fixture
def without_mae(monkeypatch):
    monkeypatch.setattr(TASKS, "data", {**TASKS.built_in})
    monkeypatch.setenv(plugin.VARIABLE, "no:mae")


def test_a_list_of_tasks_is_no_task(here, without_mae):
    assert "task.name: should be" in said(2, "train", "-s", "task.name=[mae]", "--dry-run")


def test_a_run_of_a_plugin_that_is_off_is_healthy_and_says_what_it_needs(copy_of_run, request):
    run = copy_of_run(Path("run"), {"task.name": "mae", "train.epochs": 1})
    record = vitcli.load_run(run)
    assert (record.reason, record.headline.name) == ("", "masked_mse")
    request.getfixturevalue("without_mae")
    _parsed_before.clear()
    record = vitcli.load_run(run)
    assert (record.state, record.problems) == ("finished", ())
    assert record.reason == "needs the plugin mae, which is off"
    assert record.result["test_masked_mse"] > 0
    verdicts = json.loads(printed("runs", "verify", run, "--json"))["verdicts"]
    assert {row["state"] for row in verdicts} == {"ok"}
    for command in ("eval", "visualize", "export --format card", "train --resume"):
        assert record.reason in said(2, *command.split(), run), command
    shown = json.loads(printed("runs", "show", run, "--json"))
    assert (shown["reason"], shown.get("next", [])) == (record.reason, []), "eval would be refused"
    assert f"{record.reason}: run" in printed("runs", "ls", run)


def test_a_run_of_a_plugin_whose_folder_is_gone_is_healthy(copy_of_run, without_mae, monkeypatch):
    run = copy_of_run(Path("run"), {"train.epochs": 1})
    config, meta = run / "config.yaml", run / "meta.json"
    config.write_text(config.read_text().replace("name: classify", "name: mae"))
    meta.write_text(json.dumps(json.loads(meta.read_text()) | {"config_sha256": None}))
    known = {name: row for name, row in plugin.plugins().items() if name != "mae"}
    for module in (plugin, own_code):
        monkeypatch.setattr(module, "plugins", lambda: known)
    record = vitcli.load_run(run)
    assert (record.state, record.problems) == ("finished", ())
    assert record.reason == "needs a plugin with task.name mae"
