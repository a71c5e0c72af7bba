"""Trainings on several ranks, started as a user starts them: through torchrun."""

import subprocess
import sys
import time
from pathlib import Path

from tests.patience import HANG

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone")


def start(*words: str, ranks: int = 2, restarts: int = 0) -> subprocess.Popen[str]:
    numbers = [f"--nproc-per-node={ranks}", f"--max-restarts={restarts}"]
    command = [*TORCHRUN, *numbers, "-m", "vitcli", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def run(*words: str, ranks: int = 2, code: int = 0) -> str:
    process = start(*words, ranks=ranks)
    output = process.communicate(timeout=HANG)[0]
    assert process.returncode == code, output
    return output


def rank_processes(torchrun: int) -> list[int]:
    lists = [file.read_text() for file in Path(f"/proc/{torchrun}/task").glob("*/children")]
    return sorted(int(number) for number in " ".join(lists).split())


def wait_for_checkpoint(process: subprocess.Popen[str], run: Path) -> None:
    until = time.monotonic() + HANG
    while not any(run.glob("checkpoints/*/manifest.json")):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < until
        time.sleep(0.02)
