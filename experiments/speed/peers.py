"""Compare vitcli's training speed with that of other libraries (peers), on the same model.

Usage: python experiments/speed/peers.py [--data DIR] [--device cpu|cuda] [--models tiny,small]
                                  [--rounds 5] [--seconds 2] [--precision bf16]
                                  [--compile [MODE]] [--allocator] [-o FILE]
Needs: pip install '.[bench]'. DIR holds CIFAR-10's class folders. Without DIR the data set is
``shapes``.

Every contender is a process of its own, so that contenders do not share a memory allocator. They
take turns, A B C ... A B C ...; while one runs, the others and their data workers are stopped. All
turns of a contender have the same number of steps. Speeds are medians over the turns.

A peer runs in fp32 and with bf16 autocast, and the faster of the two counts. If the first steps in
one of them take at least 5 times as long as in the other, as where bf16 is emulated, the slower one
is skipped. So is a peer that is missing or fails. ``--precision`` is the only precision of all,
vitcli included. ``--compile`` and ``--allocator`` give the peers torch.compile (with a MODE such as
reduce-overhead) and vitcli's allocator settings. Otherwise vitcli runs as in ``vitcli train``. FILE
is written after each round.

step        forward, loss, backward, clipping and AdamW, on one batch that stays in memory
end_to_end  the same with data: the peers use torchvision's transforms in a DataLoader with as many
            workers as cores, vitcli uses its batched augmentation. Both crop and flip.
"""

import argparse
import contextlib
import datetime
import importlib.metadata
import itertools
import json
import math
import os
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from contender import load_set

from vitcli.cli.main import SPIN_COUNT
from vitcli.runner.errors import UserError
from vitcli.runner.machine.device import cpu_kind, cpu_limits, hardware, pick_device, source_commit

SIZES = {
    "tiny": (64, 5, 4, 64, 4, 256),
    "small": (400, 6, 8, 512, 4, 64),
    "base": (512, 7, 8, 2048, 2, 100),
}
FIELDS = ("embed_dim", "depth", "num_heads", "mlp_dim", "patch_size", "batch_size")
MODELS = {name: dict(zip(FIELDS, sizes, strict=True)) for name, sizes in SIZES.items()}
PEERS = {
    "timm": "timm",
    "torchvision": "torchvision",
    "transformers": "transformers",
    "vit-pytorch": "vit-pytorch",
}
NAMES = ("vitcli", *PEERS)
PARTS = ("step", "end_to_end")
MODES = ("fp32", "bf16")
FIRST_STEPS = 3
TOO_SLOW = 5
"""A mode is skipped if its first steps take this many times as long as those of the other mode."""
CONTENDER = Path(__file__).with_name("contender.py")
Job = dict[str, Any]


class ContenderError(Exception):
    """A contender ended by itself; the text is the last line that it wrote."""


class Contender:
    """Process that trains on request. Between its turns, it and its data workers are stopped."""

    def __init__(self, job: Job) -> None:
        self.job, self.speeds = job, list[float]()
        self.answer: Job = {}
        self.errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        ours = {"GOMP_SPINCOUNT": SPIN_COUNT} if job["name"] == "vitcli" else {}
        self.process = subprocess.Popen(
            [sys.executable, str(CONTENDER), json.dumps(job)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env=os.environ | ours,
            text=True,
            start_new_session=True,
        )

    def run(self, steps: int, limit: float | None = None) -> float:
        """Take a number of steps and return their seconds; infinity if they exceed ``limit``.

        Raises:
            ContenderError: The process ended.
        """
        self.signal(signal.SIGCONT)
        try:
            return self.ask(steps, limit)
        finally:
            self.signal(signal.SIGSTOP)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process and its data workers."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def ask(self, steps: int, limit: float | None) -> float:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(f"{steps}\n")
            self.process.stdin.flush()
        if not select.select([self.process.stdout], [], [], limit)[0]:
            return math.inf
        if not (line := self.process.stdout.readline()):
            self.errors.seek(0)
            lines = self.errors.read().split("\n")
            raise ContenderError(
                next((line for line in reversed(lines) if line.strip()), "it ended")
            )
        self.answer = json.loads(line)
        seconds: float = self.answer["seconds"]
        return seconds

    def stop(self) -> None:
        self.signal(signal.SIGKILL)
        self.process.communicate()
        self.errors.close()

    def row(self) -> Job:
        """Return what was measured so far."""
        return {
            "name": self.job["name"],
            "precision": self.answer["precision"],
            "images_per_second": round(statistics.median(self.speeds), 1),
            "turns": [round(speed, 1) for speed in self.speeds],
            "memory": self.answer["memory"],
        } | {key: self.answer[key] for key in ("kernels",) if key in self.answer}


def race(
    libraries: list[list[Job]], rounds: int, seconds: float, skipped: dict[str, str]
) -> Iterator[list[Job]]:
    """Measure the images per second of jobs, in turns of about ``seconds``.

    After each round, yield a row for each job.

    Args:
        libraries: For each library, a job per mode.
        rounds: Number of turns of each job.
        seconds: Approximate length of a turn.
        skipped: Job -> why it is skipped. Jobs that are too slow or fail are added.
    """
    contenders = list[Contender]()
    try:
        for jobs in libraries:
            contenders += start(jobs, skipped)
        lengths = {}
        for contender in contenders:
            if each := attempt(contender, FIRST_STEPS, skipped):  # after the warm-up
                lengths[contender] = max(2, round(seconds * FIRST_STEPS / each))
        for _ in range(rounds):
            for contender, steps in list(lengths.items()):
                if took := attempt(contender, steps, skipped):
                    contender.speeds.append(steps * contender.job["batch_size"] / took)
                else:
                    del lengths[contender]
            left_out = [
                {"name": job["name"], "precision": job["precision"], "skipped": reason}
                for job in itertools.chain(*libraries)
                if (reason := skipped.get(name_of(job)))
            ]
            yield [*(contender.row() for contender in lengths), *left_out]
    finally:
        for contender in contenders:
            contender.stop()


def attempt(
    contender: Contender, steps: int, skipped: dict[str, str], limit: float | None = None
) -> float | None:
    """Take steps and return their seconds; None, and a reason in ``skipped``, after a failure."""
    try:
        return contender.run(steps, limit)
    except ContenderError as error:
        skipped[name_of(contender.job)] = f"it failed: {error}"
        return None


def start(jobs: list[Job], skipped: dict[str, str]) -> list[Contender]:
    """Take the first steps of each mode of a library; return the modes that are not too slow.

    A mode that takes ``TOO_SLOW`` times as long as the start of the mode before is stopped. A mode
    whose process ends by itself is skipped.
    """
    firsts: dict[Contender, float] = {}
    limit = None
    for job in jobs:
        if name_of(job) in skipped:
            continue
        began = time.monotonic()
        contender = Contender(job)
        seconds = attempt(contender, FIRST_STEPS, skipped, limit)
        if seconds is None:
            contender.stop()
            continue
        firsts[contender] = seconds
        limit = TOO_SLOW * (time.monotonic() - began)
    fastest = min(firsts.values(), default=0.0)
    for contender, seconds in firsts.items():
        if seconds >= TOO_SLOW * fastest:
            contender.stop()
            factor = f"{seconds / fastest:.0f}" if math.isfinite(seconds) else f"over {TOO_SLOW}"
            reason = f"its first steps took {factor} times as long as those of the other mode"
            skipped[name_of(contender.job)] = reason
    return [contender for contender in firsts if name_of(contender.job) not in skipped]


def name_of(job: Job) -> str:
    return f"{job['name']} {job['precision']}"


def versions() -> dict[str, str]:
    """Return the version of torch and of each library that is installed."""
    found = {}
    for name in dict.fromkeys(["torch", *PEERS.values()]):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def compare(
    model: str, part: str, options: argparse.Namespace, skipped: dict[str, str]
) -> Iterator[Job]:
    """Yield the comparison with the peers after each round."""
    common = {**MODELS[model], "part": part, "device": options.device, "data": options.data}
    for_vitcli = common | {"compile": False, "allocator": False}
    for_peers = common | {"compile": options.compile, "allocator": options.allocator}
    # In its usual folder, torch also finds code that was compiled for other limits of the CPU.
    for_peers["compile_cache"] = options.compile_cache
    libraries = [[for_vitcli | {"name": "vitcli", "precision": options.precision or "auto"}]]
    modes = [options.precision] if options.precision else MODES
    libraries += [[for_peers | {"name": n, "precision": p} for p in modes] for n in PEERS]
    for found in race(libraries, options.rounds, options.seconds, skipped):
        rows = {n: [f for f in found if f["name"] == n and "skipped" not in f] for n in NAMES}
        best = {n: max(rows[n], key=speed) for n in NAMES if rows[n]}
        ours = best.pop("vitcli", None)
        if not (ours and best):
            raise SystemExit("nothing to compare: " + "; ".join(map(": ".join, skipped.items())))
        fastest = max(best.values(), key=speed)
        yield {
            "model": model,
            "part": part,
            "ours": ours["images_per_second"],
            "fastest_peer": fastest["images_per_second"],
            "peer": name_of(fastest),
            "ratio": round(speed(ours) / speed(fastest), 3),
            "ratios": {n: round(speed(ours) / speed(row), 3) for n, row in best.items()},
            "repetitions": len(ours["turns"]),
            "peers_compiled": options.compile or False,
            "peers_allocator": options.allocator,
            "memory": {
                "ours": ours["memory"],
                "leanest_peer": min(row["memory"] for row in best.values()),
            },
            "contenders": found,
        }


def speed(row: Job) -> float:
    value: float = row["images_per_second"]
    return value


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare vitcli's training speed with its peers'")
    parser.add_argument("--data")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--models", default="tiny,small")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--precision", choices=MODES)
    parser.add_argument("--compile", nargs="?", const="default", metavar="MODE")
    parser.add_argument("--allocator", action="store_true")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    models, parts = options.models.split(","), options.parts.split(",")
    for name, known in (*((name, MODELS) for name in models), *((name, PARTS) for name in parts)):
        if name not in known:
            parser.error(f"no {name!r}; choose from {', '.join(known)}")
    if options.rounds < 1:
        parser.error("--rounds takes a number from 1")
    rows, skipped = list[Job](), dict[str, str]()
    try:
        facts = describe_machine(options)
        images = load_set({"data": options.data})  # so that contenders read the decoded images
    except UserError as error:
        parser.exit(error.exit_code, f"error: {error}\n")
    facts["data_hash"] = images.data_hash
    with tempfile.TemporaryDirectory() as options.compile_cache:
        for model, part in itertools.product(models, parts):
            rows.append({})
            for row in compare(model, part, options, skipped):
                rows[-1] = row | facts
                if options.output:
                    options.output.write_text(json.dumps(rows, indent=1) + "\n")
            print(summary(rows[-1]), flush=True)  # noqa: T201
    for name, reason in skipped.items():
        print(f"skipped {name}: {reason}")  # noqa: T201


def describe_machine(options: argparse.Namespace) -> Job:
    """Return the facts that all rows share."""
    return {
        "data": "cifar10" if options.data else "shapes",
        "hardware": hardware(pick_device(options.device)),
        "cpu": {
            "kind": cpu_kind(),
            "capability": torch.backends.cpu.get_cpu_capability(),
            "limits": cpu_limits(),
        },
        "versions": versions(),
        "commit": source_commit()[0],
        "date": datetime.date.today().isoformat(),
    }


def summary(row: Job) -> str:
    """Return the result of a comparison as a line."""
    ours = row["contenders"][0]
    return (
        f"{row['model']} {row['part']}: vitcli {row['ours']:,.0f} images/s"
        f" ({ours['precision']}, {ours['kernels']} kernels), {row['ratio']:.2f} times"
        f" {row['peer']} ({row['fastest_peer']:,.0f})"
    )


if __name__ == "__main__":
    main()
