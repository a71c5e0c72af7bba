"""Check that resumed and uninterrupted trainings give bit-identical results.

Usage: python experiments/speed/resume_exact.py [--device cuda] [-s FIELD=VALUE] [-o FILE.json]
Trains quickstart twice: once without interruption, and once killed with SIGKILL after its first
checkpoint and resumed. Compares the digests of the final weights, optimiser state and counters.
"""

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from vitcli.runner.run.folder import steps

TRAIN = [sys.executable, "-m", "vitcli", "train", "quickstart", "--epochs", "3"]


def start(folder: Path, options: list[str]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([*TRAIN, *options, "-o", str(folder)])


def kill_after_checkpoint(folder: Path, options: list[str]) -> int:
    """Start a training, kill it after a checkpoint, and return the checkpoint's step."""
    process = start(folder, options)
    while not steps(folder / "checkpoints"):
        if process.poll() is not None:
            raise SystemExit("the training ended before it could be killed")
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    return steps(folder / "checkpoints")[0]


def digests(folder: Path) -> dict[str, str]:
    """Return the digests of the files of the last checkpoint."""
    last = folder / "checkpoints" / str(steps(folder / "checkpoints")[0])
    found: dict[str, str] = json.loads((last / "manifest.json").read_text())["files"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Check that a resumed training is exact")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--limit-batches", help="batches per epoch")
    parser.add_argument("-s", "--set", action="append", default=[], metavar="FIELD=VALUE")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    train = ["--device", options.device]
    train += ["--limit-batches", options.limit_batches] if options.limit_batches else []
    train += [word for each in options.set for word in ("-s", each)]
    with tempfile.TemporaryDirectory() as name:
        calm, killed = Path(name) / "calm", Path(name) / "killed"
        start(calm, train).wait()
        at = kill_after_checkpoint(killed, train)
        start(killed, [*train, "--resume", "auto"]).wait()
        one, two = digests(calm), digests(killed)
    result = {"set": options.set, "killed_at_step": at, "exact": one == two, "digests": [one, two]}
    text = json.dumps(result, indent=1)
    if options.output:
        options.output.write_text(text + "\n")
    print(text)  # noqa: T201
    sys.exit(0 if result["exact"] else 6)


if __name__ == "__main__":
    main()
