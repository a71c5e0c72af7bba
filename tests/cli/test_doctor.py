"""`vitcli doctor`: facts for an issue, without names, and exit code 6 where work is impossible."""

import shutil
from functools import partial
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.cli import commands
from tests.cli.commands import document
from tests.runner.machine.processors import AVX2, ZEN4
from vitcli.runner import limits
from vitcli.runner.machine import device
from vitcli.runner.machine.doctor import PACKAGES, THREAD_VARIABLES

vitcli = partial(commands.vitcli, "doctor")
pytestmark = pytest.mark.usefixtures("here")


@pytest.fixture(autouse=True)
def _machine(monkeypatch) -> None:
    monkeypatch.setattr(device, "this_processor", lambda: ZEN4)
    monkeypatch.setattr(limits, "allowed_cores", lambda: [0, 1])
    monkeypatch.setattr(limits, "cpu_quota", lambda: None)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    for name in THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_a_sound_machine():
    found = document("doctor")
    assert (found["ok"], found["problems"]) == (True, [])
    assert found.keys() >= {"vitcli", "python", "system", *PACKAGES}
    assert found["runs_writable"] is found["cache_writable"] is found["offline"] is True


@pytest.mark.parametrize(
    ("threads", "quota", "cpu", "told"),
    [
        ("1", None, ZEN4, "unset OMP_NUM_THREADS"),
        (None, 1.5, ZEN4, "--cpus 2"),
        (None, None, AVX2, "--precision auto"),
        ("2", 4.0, ZEN4, None),
        ("many", None, ZEN4, None),
    ],
)
def test_what_slows_a_training_down_is_a_note(monkeypatch, threads, quota, cpu, told):
    if threads:
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
    monkeypatch.setattr(limits, "cpu_quota", lambda: quota)
    monkeypatch.setattr(device, "this_processor", lambda: cpu)
    found = document("doctor")
    notes = [note for note in found["notes"] if "data" not in note and "compiler" not in note]
    assert [told in note for note in notes] == ([True] if told else [])


def test_it_names_no_person_and_no_machine(here, monkeypatch):
    monkeypatch.setenv("HOME", str(here / "home" / "alice"))
    monkeypatch.setenv("VITCLI_CACHE", str(here / "home" / "alice" / "cache"))
    monkeypatch.setenv("VITCLI_DATA", "/scratch/mainframe7/alice/data")
    monkeypatch.setattr("getpass.getuser", lambda: "alice")
    monkeypatch.setattr("platform.node", lambda: "mainframe7")
    for out in (vitcli()[1], vitcli("--json")[1]):
        assert ("alice" in out, "mainframe7" in out, "~/cache" in out) == (False, False, True)
        assert "/scratch/HOST/USER/data" in out


def no_safetensors(name: str, version=metadata.version) -> str:
    if name == "safetensors":
        raise metadata.PackageNotFoundError(name)
    return version(name)


FULL = SimpleNamespace(total=2**40, used=2**40, free=1000)


@pytest.mark.parametrize(
    ("place", "name", "value"),
    [
        (shutil, "disk_usage", lambda _: FULL),
        (metadata, "version", no_safetensors),
        (torch, "__version__", "2.10.1+cpu"),
        (None, "", ""),
    ],
    ids=["disk", "package", "version", "runs"],
)
def test_what_makes_work_impossible_is_exit_6_and_a_problem(monkeypatch, place, name, value):
    if place:
        monkeypatch.setattr(place, name, value)
    else:
        Path("runs").touch()
    found = document("doctor", code=6)
    assert (found["ok"], len(found["problems"])) == (False, 1)
