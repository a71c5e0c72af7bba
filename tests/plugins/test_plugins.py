"""The seam: what a plugin adds is there with it, and not without it."""

import json
import os

import pytest

from tests.cli.commands import printed, said
from vitcli import plugin
from vitcli.cli.main import all_commands
from vitcli.core.spec import TASKS
from vitcli.core.spec.rows import Registry, load_target


@pytest.mark.parametrize("name", plugin.plugins())
def test_what_a_plugin_adds_can_be_imported(name):
    added = plugin.plugins()[name]
    for rows in added.rows.values():
        assert all(load_target(target) for target in rows.values())
    assert all(load_target(target) for target in added.commands.values())
    assert {*added.needs} <= plugin.plugins().keys()


def test_without_a_plugin_its_rows_and_commands_and_what_needs_it_are_gone(monkeypatch):
    assert {"mae", "ssat"} <= {*TASKS}
    assert "explain" in all_commands()
    monkeypatch.setenv(plugin.VARIABLE, "no:mae, no:explain")
    table = Registry(TASKS.field, TASKS.built_in)
    assert "classify" in table
    assert not {"mae", "ssat"} & {*table}
    assert "explain" not in all_commands()
    assert "bench" in all_commands()
    states = {
        row["name"]: row["state"] for row in json.loads(printed("plugins", "--json"))["plugins"]
    }
    assert states["mae"] == "switched off"
    assert "mae" in states["ssat"]
    assert states["clip"] == "on"


def test_a_switch_holds_for_one_command():
    assert "no such command" in said(2, "-p", "no:explain", "explain")
    assert not os.environ.get(plugin.VARIABLE)
    assert "no:NAME" in said(2, "-p", "no:nothing", "plugins")


def test_an_experiment_that_needs_a_plugin_says_so(here, monkeypatch):
    monkeypatch.setattr(TASKS, "_rows", {**TASKS.built_in})
    talk = said(2, "train", "quickstart", "-s", "task.name=mae", "--dry-run")
    assert "task.name: needs the plugin mae, which is off" in talk
