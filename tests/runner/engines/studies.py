"""A small study that several drivers train, and its table without times."""

import csv
import io
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

TIMES = ("seconds_mean", "seconds_total")
STUDY = (
    "base: tiny.yaml\ntrain: {epochs: %d}\nseeds: %s\n"
    "variants: {full: {}, no-norm: {model.norm: none}, no-ffn: {model.ffn: none}}\n"
)
LONGEST = 600
"""Seconds after which a study hangs."""


def write_study(epochs: int, seeds: tuple[int, ...] = (0,)) -> None:
    Path("mine.yaml").write_text(STUDY % (epochs, list(seeds)))


def ablate(environment: dict[str, str], output: Path, *words: str) -> subprocess.Popen[str]:
    """Start the command on the study; its talk goes into a file beside the folder."""
    command = ["ablate", "mine.yaml", "--device", "cpu", "--format", "csv", "-o", str(output)]
    with output.with_name(f"{output.name}.txt").open("a") as talk:
        return subprocess.Popen(
            [sys.executable, "-m", "vitcli", *command, *words],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=talk,
            text=True,
        )


def table_of(driver: subprocess.Popen[str], output: Path) -> list[dict[str, str]]:
    """Wait for the command and return its table without times."""
    text, _ = driver.communicate(timeout=LONGEST)
    assert driver.returncode == 0, talk(output)
    rows = csv.DictReader(io.StringIO(text))
    return [{name: value for name, value in row.items() if name not in TIMES} for row in rows]


def talk(output: Path) -> str:
    return output.with_name(f"{output.name}.txt").read_text()


def wait_for(what: Callable[[], object], driver: subprocess.Popen[str], output: Path) -> None:
    until = time.monotonic() + LONGEST
    while not what():
        assert driver.poll() is None, talk(output)
        assert time.monotonic() < until, talk(output)
        time.sleep(0.05)
