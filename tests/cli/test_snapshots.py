"""What commands print: the help, tables and mistakes in snapshots/, a file a command.

A line that begins with ``$`` is a command. Below it stand what it prints on stdout (after ``|``)
and on stderr (after ``!``), and its exit code if that is not 0. To write the files again, also
after a command was added to one: ``VITCLI_SNAPSHOTS=write pytest tests/cli/test_snapshots.py``.
"""

import os
import shlex
from pathlib import Path

import pytest

from tests.cli.commands import root, vitcli
from tests.runner.train.conftest import files
from vitcli.cli.main import LazyCommands
from vitcli.runner.experiment.config import load_experiment

pytestmark = pytest.mark.seam

FOLDER = Path(__file__).parent / "snapshots"
IS_WRITTEN = os.environ.get("VITCLI_SNAPSHOTS") == "write"
CODES = {2, 3, 4, 5}
"""Exit codes of mistakes; the others are tested where they occur."""
NEEDED = {
    "ablate": ("ray", "slurm"),
    "attn-map": ("live", "timm"),
    "data": ("data_check", "hf", "parquet"),
    "eval": ("clip", "probe", "review"),
    "predict": ("clip",),
    "runs": ("clip", "page", "trackers"),
    "search": ("ray",),
    "train": ("hf", "mae", "parquet", "timm"),
    "visualize": ("distance", "embeddings", "faithfulness", "live"),
}
"""Plugins that add to what a command of the core prints."""


def helps(command: str) -> list[str]:
    below = [f"{command} {name}" for name in getattr(root().commands[command], "commands", ())]
    return [f"$ vitcli {words} --help" for words in [command, *below]]


def shown(line: str, here: Path) -> str:
    code, out, talk = vitcli(*shlex.split(line.removeprefix("$ vitcli")))
    if code:
        assert code in CODES, line
        assert sum(each.startswith("error: ") for each in talk.splitlines()) == 1, line + talk
    lines = [
        line,
        *(f"| {each}" for each in out.splitlines()),
        *(f"! {each}" for each in talk.splitlines()),
        *([f"exit {code}"] if code else []),
    ]
    text = "\n".join(each.rstrip() for each in lines)
    shipped = load_experiment("quickstart").path.resolve().parent  # of the package, from ``here``
    for name, place in {"EXPERIMENTS": shipped, "CACHE": here.parent / "cache"}.items():
        text = text.replace(str(place), name)
    return text.replace(str(here), "HERE")


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(command, marks=pytest.mark.plugin(*NEEDED.get(command, ())))
        for command in ("vitcli", *LazyCommands())
    ],
)
def test_a_command_prints_what_its_snapshot_shows(stage, command):
    path = FOLDER / f"{command}.txt"
    text = path.read_text() if path.exists() else ""
    asked = [line for line in text.splitlines() if line.startswith("$ ")]
    own = [] if command == "vitcli" else helps(command)
    before = files(stage)
    found = "\n\n".join(shown(line, stage) for line in [*own, *(e for e in asked if e not in own)])
    assert files(stage) == before, "what only prints, or is refused, writes nothing"
    if IS_WRITTEN:
        path.write_text(f"{found}\n")
    assert f"{found}\n" == text or IS_WRITTEN
