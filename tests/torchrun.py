"""Trainings on several ranks, started as a user starts them: through torchrun."""

import subprocess
import sys
import time
from pathlib import Path

from tests.patience import HANG

TORCHRUN = (sys.executable, "-m", "torch.distributed.run")


def start(*words: str) -> subprocess.Popen[str]:
    command = [*TORCHRUN, "--standalone", "--nproc-per-node", "2", "-m", "vitcli", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def run(*words: str) -> str:
    process = start(*words)
    output = process.communicate(timeout=HANG)[0]
    assert process.returncode == 0, output
    return output


def rank_processes(torchrun: int) -> dict[int, int]:
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            lines = (folder / "environ").read_text().split("\0")
        except OSError:
            continue
        variables = dict(line.partition("=")[::2] for line in lines)
        if parent == torchrun and "RANK" in variables:
            found[int(variables["RANK"])] = int(folder.name)
    return found


def wait_for_checkpoint(process: subprocess.Popen[str], run: Path) -> None:
    until = time.monotonic() + HANG
    while not any(run.glob("checkpoints/*/manifest.json")):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < until
        time.sleep(0.02)
