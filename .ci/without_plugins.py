"""Test the core in a copy of the checkout in which plugins are deleted.

    python .ci/without_plugins.py               each plugin in turn: the tests marked "seam"
    python .ci/without_plugins.py clip mae      these in turn
    python .ci/without_plugins.py --all         all at once: all tests of the core

A plugin goes with the plugins that need it. Without all, `vitcli --help` and README's commands of
the core are typed, and `runs ls` in a folder with a run of each task, trained before, must say
which plugin each run needs. Exit code 1 if a test or command fails.
"""

# ruff: noqa: T201
import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from vitcli.plugin import Plugin, plugins

ROOT = Path(__file__).resolve().parents[1]

TASKS = """
from pathlib import Path
from tests.task_table import TinyTask
from vitcli.core.spec import TASKS
for name in TASKS:
    task = TinyTask(name, Path("tasks"))
    task.train(f"runs/{name}", {"train.epochs": 1, "train.limit_batches": 1})
"""
IN_TURN = """
import json, sys
from vitcli.cli.main import main
for words in json.loads(sys.argv[1]):
    print("$ vitcli", *words, flush=True)
    sys.argv = ["vitcli", *words]
    try:
        main()
    except SystemExit as end:
        assert not end.code
"""
SHORT = ("--epochs", "1", "--limit-batches", "2")
CORE = ("tests/core", "tests/runner", "tests/cli")
"""Where the core's tests are, and those marked "seam"."""
ITS_PYTHON = ("tests/test_api.py", "tests/test_api_studies.py", "tests/test_layering.py")
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("--help",),
    ("doctor",),
    ("train", *SHORT),
    ("ablate", *SHORT, "--seeds", "0", "--only", "no-ffn", "-o", "study"),
    ("attn-map", "photo.jpg"),
    ("train", "finetune", "--data", "imagefolder:pictures", "--name", "pets", *SHORT),
    ("eval", "pets"),
    ("predict", "pets", "pictures/test", "--reject", "0.8", "--format", "csv"),
    ("visualize", "quickstart", "--what", "curves", "--num-images", "10"),
    ("experiments", "cp", "quickstart", "mine.yaml"),
    ("train", "mine.yaml", "-s", "model.attention=linformer", *SHORT),
    ("train", "cifar10-small", "--dry-run"),
    ("data", "ls"),
    ("runs", "show", "pets"),
    ("runs", "verify", "pets"),
)
"""README's commands of the core, shortened, and one of each other group; in turn in a process."""


class Copy:
    """A copy of the tracked files, in which plugins can be deleted."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.place = folder / "checkout", folder / "place"
        tracked = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True)
        for name in filter(None, tracked.split("\0")):
            if (ROOT / name).is_file():
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, self.folder / name)
        self.place.mkdir()
        hidden = ("PYTEST_ADDOPTS", "VITCLI_PLUGINS", "VITCLI_DATA")
        given = {name: value for name, value in os.environ.items() if name not in hidden}
        own = {"PYTHONPATH": str(self.folder), "VITCLI_CACHE": str(folder / "cache")}
        self.environment = given | own | {"VITCLI_OFFLINE": "1"}

    def delete(self, names: Sequence[str]) -> None:
        for name in names:
            shutil.rmtree(self.folder / "vitcli/plugins" / name)
            shutil.rmtree(self.folder / "tests/plugins" / name, ignore_errors=True)
        found = self.python("-c", "import vitcli; print(vitcli.__file__)", cwd=self.place)
        assert found.stdout.strip() == str(self.folder / "vitcli/__init__.py"), found.stdout

    def python(self, *words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *words]
        streams: dict[str, Any] = {
            "stdout": subprocess.PIPE,
            "stderr": subprocess.STDOUT,
            "text": True,
        }
        return subprocess.run(
            command, cwd=cwd or self.folder, env=self.environment, check=False, **streams
        )

    def passes(self, *words: str, cwd: Path | None = None) -> bool:
        """Run a program; print what it says if it fails."""
        done = self.python(*words, cwd=cwd)
        if done.returncode:
            print(f"failed ({done.returncode}): {' '.join(words)}\n{done.stdout}")
        return done.returncode == 0


def with_dependants(name: str, known: Mapping[str, Plugin]) -> list[str]:
    """Return a plugin, and those that need it."""
    names = [name]
    for each in names:
        names += [other for other, plugin in known.items() if each in plugin.needs]
    return list(dict.fromkeys(names))


def tests_pass_without(names: Sequence[str]) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        copy = Copy(Path(folder))
        copy.delete(names)
        return copy.passes("-m", "pytest", "-q", "-m", "seam", "-p", "no:xdist", *CORE)


def core_works_without(known: Mapping[str, Plugin]) -> bool:
    owners = {row: name for name in known for row in known[name].rows.get("task.name", ())}
    with tempfile.TemporaryDirectory() as folder:
        copy = Copy(Path(folder))
        assert copy.passes("-c", TASKS, cwd=copy.place), "a run of each task"
        copy.delete([*known])
        shutil.rmtree(copy.folder / "tests/plugins")
        shutil.copytree(copy.place / "tasks/gratings", copy.place / "pictures")
        shutil.copy(copy.folder / "experiments/results/ship.jpg", copy.place / "photo.jpg")
        vitcli = ("-m", "vitcli")
        found = copy.python(*vitcli, "runs", "ls", "--json", cwd=copy.place).stdout
        rows = {row["name"]: row for row in json.loads(found)["runs"]}
        works = {*owners} <= rows.keys()
        for name, row in rows.items():
            needed = f"the plugin {owners[name]}" if name in owners else ""
            is_named = needed in row["reason"] if needed else not row["reason"]
            print(f"{name:10} {row['state']:10} {row['reason']}")
            works &= row["state"] == "finished" and is_named
        with ThreadPoolExecutor() as pool:
            folders = (*CORE, *ITS_PYTHON)
            tests = pool.submit(copy.passes, "-m", "pytest", "-q", "-n", "auto", *folders)
            works &= copy.passes("-c", IN_TURN, json.dumps(COMMANDS), cwd=copy.place)
        return tests.result() and works


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    known = {name: plugin for name, plugin in plugins().items() if plugin.package == "vitcli"}
    parser.add_argument("names", nargs="*", metavar="NAME", help="a plugin; none: each in turn")
    parser.add_argument("--all", action="store_true", help="delete all at once")
    given = parser.parse_args()
    if unknown := {*given.names} - known.keys():
        parser.error(f"no such plugin: {', '.join(sorted(unknown))}")
    failed = []
    for name in ["all"] if given.all else given.names or [*known]:
        start = time.monotonic()
        names = with_dependants(name, known) if name in known else [*known]
        passed = core_works_without(known) if given.all else tests_pass_without(names)
        failed += [] if passed else [name]
        seconds = time.monotonic() - start
        print(f"{name:14} {'passed' if passed else 'FAILED'} {seconds:5.0f} s", flush=True)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
