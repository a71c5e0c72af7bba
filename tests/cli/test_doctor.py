"""`vitcli doctor`: facts for an issue, without names, and exit code 6 where work is impossible."""

import json
import shutil
from collections import namedtuple
from dataclasses import replace
from functools import partial
from importlib import metadata
from pathlib import Path

import pytest
import torch

from tests.cli import commands
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
    code, out, talk = vitcli()
    assert code == 0
    assert talk == "no problems found; next: vitcli train\n"
    assert f"torch         {torch.__version__}" in out
    assert "  offline        yes" in out
    assert "only the generated data sets are on this machine; type: vitcli data get cifar10" in out
    found = json.loads(vitcli("--json")[1])
    assert (found["ok"], found["problems"]) == (True, [])
    assert found["versions"].keys() == {"vitcli", "python", "system", *PACKAGES}
    assert found["devices"]["threads"] == torch.get_num_threads()
    assert found["runs"]["writable"] is True
    assert found["cache"]["writable"] is True
    assert found["memory"]["total_bytes"] > 2**28
    assert found["data"]["offline"] is True


def test_it_shows_products_beside_the_peak():
    out = vitcli()[1]
    assert "fp32 8320x96 by 96x96        90 GFLOP/s" in out
    assert "fp32 peak of a core, about   83 GFLOP/s" in out
    found = json.loads(vitcli("--json")[1])["products"]
    assert found["bf16 8320x96 by 96x96_flops"] == 180e9


@pytest.mark.parametrize("peak", [None, 79e9], ids=["unknown", "below the measured speed"])
def test_a_peak_that_cannot_be_is_left_out(monkeypatch, peak):
    monkeypatch.setattr(obstacles, "survey", lambda: replace(SEEN, peak=peak))
    assert "peak of a core" not in vitcli()[1]


def test_what_is_in_the_way_is_a_note(monkeypatch):
    emulated = replace(SEEN, products=products(bf16=1.5), emulates_bf16=True)
    monkeypatch.setattr(obstacles, "survey", lambda: emulated)
    assert "bf16 8320x96 by 96x96        1.5 GFLOP/s" in vitcli()[1]
    noted("this CPU emulates bf16: a product takes 60 times as long as in fp32")


def test_it_names_no_person_and_no_machine(here, monkeypatch):
    monkeypatch.setenv("HOME", str(here / "home" / "alice"))
    monkeypatch.setenv("VITCLI_CACHE", str(here / "home" / "alice" / "cache"))
    monkeypatch.setenv("VITCLI_DATA", "/scratch/mainframe7/alice/data")
    monkeypatch.setattr("getpass.getuser", lambda: "alice")
    monkeypatch.setattr("platform.node", lambda: "mainframe7")
    for out in (vitcli()[1], vitcli("--json")[1]):
        assert "alice" not in out
        assert "mainframe7" not in out
        assert "~/cache" in out
        assert "/scratch/HOST/USER/data" in out


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/home/bob", "~"),
        ("/home/bobby/x", "/home/bobby/x"),
        ("/data/bob/x", "/data/USER/x"),
    ],
)
def test_private(text, shown, monkeypatch):
    monkeypatch.setenv("HOME", "/home/bob")
    monkeypatch.setattr("getpass.getuser", lambda: "bob")
    assert hide_owner(text) == shown


def fails_with(told: str) -> None:
    """The check fails, says what to type, and the JSON agrees."""
    code, out, talk = vitcli()
    assert code == 6
    assert talk.startswith("error: ")
    assert told in talk
    assert "Traceback" not in out + talk
    found = json.loads(vitcli("--json")[1])
    assert found["ok"] is False
    assert any(told in problem for problem in found["problems"])


def test_runs_that_cannot_be_written():
    Path("runs").touch()
    fails_with("cannot be written; change to a folder of your own")


def test_a_full_disk(monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(2**40, 2**40, 1000))
    fails_with("free some space")


def test_a_missing_package(monkeypatch):
    version = metadata.version

    def without(name):
        if name == "safetensors":
            raise metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(metadata, "version", without)
    fails_with("pip install safetensors")


def test_torch_that_is_too_old(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.10.1+cpu")
    fails_with("torch 2.10.1+cpu is older than 2.11; type: pip install -U torch torchvision")


def noted(told: str) -> None:
    """Something is missing that one can work without."""
    code, out, _ = vitcli()
    assert code == 0
    assert told in out.partition("notes\n")[2]


def test_no_compiler_is_a_note(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda _: None)
    noted("no C++ compiler")
    found = json.loads(vitcli("--json")[1])["compiler"]
    assert found["c++"] is None
    assert found["kernels"].startswith("torch")
