"""`vitcli doctor`: facts for an issue, without names, and exit code 6 where work is impossible."""

import json
import shutil
from dataclasses import replace
from functools import partial
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.cli import commands
from tests.cli.commands import document, printed
from tests.runner.machine.processors import products
from vitcli.runner.machine import obstacles
from vitcli.runner.machine.doctor import PACKAGES, hide_owner
from vitcli.runner.machine.obstacles import Circumstances

vitcli = partial(commands.vitcli, "doctor")
pytestmark = pytest.mark.usefixtures("here")
SEEN = Circumstances(products=products(t1=80, t2=155), cores=2, usable=2, peak=83e9)


@pytest.fixture(autouse=True)
def _measured(monkeypatch) -> None:
    """A quiet machine of two cores, which needs no measurement."""
    monkeypatch.setattr(obstacles, "survey", lambda: SEEN)


def test_a_sound_machine():
    assert f"torch         {torch.__version__}" in printed("doctor")
    found = document("doctor")
    assert (found["ok"], found["problems"]) == (True, [])
    assert found["versions"].keys() == {"vitcli", "python", "system", *PACKAGES}
    assert found["devices"]["threads"] == torch.get_num_threads()
    assert found["runs"]["writable"] is found["cache"]["writable"] is True
    assert found["memory"]["total_bytes"] > 2**28
    assert found["data"]["offline"] is True


def test_products_are_shown_beside_a_peak_that_can_be(monkeypatch):
    found = document("doctor")["products"]
    assert found["bf16 8320x96 by 96x96_flops"] == 180e9
    for peak, is_shown in ((83e9, True), (None, False), (79e9, False)):  # measured: 80e9
        monkeypatch.setattr(obstacles, "survey", lambda peak=peak: replace(SEEN, peak=peak))
        assert ("peak of a core, about   83 GFLOP/s" in vitcli()[1]) == is_shown


def test_it_names_no_person_and_no_machine(here, monkeypatch):
    monkeypatch.setenv("HOME", str(here / "home" / "alice"))
    monkeypatch.setenv("VITCLI_CACHE", str(here / "home" / "alice" / "cache"))
    monkeypatch.setenv("VITCLI_DATA", "/scratch/mainframe7/alice/data")
    monkeypatch.setattr("getpass.getuser", lambda: "alice")
    monkeypatch.setattr("platform.node", lambda: "mainframe7")
    for out in (vitcli()[1], vitcli("--json")[1]):
        assert ("alice" in out, "mainframe7" in out, "~/cache" in out) == (False, False, True)
        assert "/scratch/HOST/USER/data" in out


def test_a_name_is_hidden_as_a_whole_folder_only(monkeypatch):
    monkeypatch.setenv("HOME", "/home/bob")
    monkeypatch.setattr("getpass.getuser", lambda: "bob")
    found = [hide_owner(text) for text in ("/home/bob", "/home/bobby/x", "/data/bob/x")]
    assert found == ["~", "/home/bobby/x", "/data/USER/x"]


def no_safetensors(name: str, version=metadata.version) -> str:
    if name == "safetensors":
        raise metadata.PackageNotFoundError(name)
    return version(name)


FULL = SimpleNamespace(total=2**40, used=2**40, free=1000)


@pytest.mark.parametrize(
    ("place", "name", "value", "told"),
    [
        (shutil, "disk_usage", lambda _: FULL, "free some space"),
        (metadata, "version", no_safetensors, "pip install safetensors"),
        (torch, "__version__", "2.10.1+cpu", "pip install -U torch torchvision"),
        (None, "", "", "cannot be written"),
    ],
    ids=["disk", "package", "version", "runs"],
)
def test_what_makes_work_impossible_is_exit_6_and_a_problem(monkeypatch, place, name, value, told):
    if place:
        monkeypatch.setattr(place, name, value)
    else:
        Path("runs").touch()
    code, out, talk = vitcli()
    assert (code, talk.startswith("error: "), told in talk) == (6, True, True)
    assert "Traceback" not in out + talk
    found = json.loads(vitcli("--json")[1])
    assert (found["ok"], any(told in problem for problem in found["problems"])) == (False, True)


def test_what_one_can_work_without_is_a_note(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda _: None)
    emulated = replace(SEEN, products=products(bf16=1.5), emulates_bf16=True)
    monkeypatch.setattr(obstacles, "survey", lambda: emulated)
    code, out, _ = vitcli()
    notes = out.partition("notes\n")[2]
    assert (code, "emulates bf16" in notes, "no C++ compiler" in notes) == (0, True, True)
    found = document("doctor")["compiler"]
    assert (found["c++"], found["kernels"].partition(" ")[0]) == (None, "torch")
