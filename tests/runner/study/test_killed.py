"""A study that is killed repeatedly ends with the table of an uninterrupted study."""

import csv
import io
import json
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
TIMES = ("seconds_mean", "seconds_total")
STUDY = (
    "base: tiny.yaml\ntrain: {epochs: 8}\nseeds: [0, 1, 2]\n"
    "variants: {full: {}, no-norm: {model.norm: none}, no-ffn: {model.ffn: none}}\n"
)


def start(environment, output: Path) -> subprocess.Popen:
    words = ["ablate", "mine.yaml", "-j", "2", "--format", "csv", "-o", str(output)]
    return subprocess.Popen(
        [sys.executable, "-m", "vitcli", *words],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def timeless(text: str) -> list[dict[str, str]]:
    rows = csv.DictReader(io.StringIO(text))
    return [{name: value for name, value in row.items() if name not in TIMES} for row in rows]


def epochs_of(folder: Path) -> int:
    """Return the number of epochs (of 72) that all trials of a study have recorded."""
    return sum(path.read_bytes().count(b"\n") for path in folder.rglob("metrics.jsonl"))


def test_a_study_killed_five_times_gives_the_same_table(tiny, environment):
    Path("mine.yaml").write_text(STUDY)
    calm, _ = start(environment, Path("calm")).communicate()
    chance = random.Random(0)
    killed = 0
    for _ in range(5):
        process = start(environment, Path("killed"))
        enough = epochs_of(Path("killed")) + chance.randint(1, 12)
        while process.poll() is None and epochs_of(Path("killed")) < enough:
            time.sleep(0.01)
        killed += process.poll() is None
        process.kill()
        process.communicate()
        time.sleep(chance.uniform(0, 2))
        states = [json.loads(path.read_text()) for path in Path("killed").rglob("status.json")]
        assert not [status for status in states if status["state"] == "failed"], states
    assert killed >= 2, "the study was hardly ever killed while it ran"
    last = start(environment, Path("killed"))
    table, _ = last.communicate()
    assert last.returncode == 0
    assert len(timeless(calm)) == 3
    assert timeless(table) == timeless(calm)
