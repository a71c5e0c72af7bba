"""Compare vitcli's training speed with that of other libraries (peers), on the same model.

Usage: python experiments/speed/peers.py [--data DIR] [--device cpu|cuda] [--models tiny,small]
                                  [--rounds 5] [--seconds 2] [--compile] [--allocator] [-o FILE]
Needs: pip install '.[bench]'. DIR holds CIFAR-10's class folders. Without DIR the data set is
``shapes``.

Every contender is a process of its own, so that contenders do not share a memory allocator. They
take turns, A B C ... A B C ...; while one runs, the others wait. All turns of a contender have the
same number of steps. Speeds are medians over the turns. A peer runs in fp32 and with bf16 autocast,
and the faster of the two counts. ``--compile`` and ``--allocator`` give the peers torch.compile and
vitcli's allocator settings. vitcli always runs as in ``vitcli train``.

step        forward, loss, backward, clipping and AdamW, on one batch that stays in memory
end_to_end  the same with data: the peers use torchvision's transforms in a DataLoader with as many
            workers as cores, vitcli uses its batched augmentation. Both crop and flip.
"""

import argparse
import datetime
import importlib.metadata
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from vitcli.cli.main import SPIN_COUNT

MODELS = {
    "tiny": {"embed_dim": 64, "depth": 5, "num_heads": 4, "mlp_dim": 64, "batch_size": 256},
    "small": {"embed_dim": 400, "depth": 6, "num_heads": 8, "mlp_dim": 512, "batch_size": 64},
}
PEERS = {
    "timm": "timm",
    "torchvision": "torchvision",
    "transformers": "transformers",
    "vit-pytorch": "vit-pytorch",
}
CONTENDER = Path(__file__).with_name("contender.py")
Job = dict[str, Any]


class Contender:
    """Process that trains on request."""

    def __init__(self, job: Job) -> None:
        self.job, self.speeds = job, list[float]()
        ours = {"GOMP_SPINCOUNT": SPIN_COUNT} if job["name"] == "vitcli" else {}
        self.process = subprocess.Popen(
            [sys.executable, str(CONTENDER), json.dumps(job)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | ours,
            text=True,
        )

    def run(self, steps: int) -> float:
        """Take a number of steps and return their seconds."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        if not (line := self.process.stdout.readline()):
            name = f"{self.job['name']} ({self.job['precision']})"
            raise SystemExit(f"{name} ended; run contender.py alone to see why")
        return float(line)

    def stop(self) -> int:
        """Stop the process and return its peak memory in bytes."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        memory: int = json.loads(self.process.stdout.readline())["memory"]
        self.process.wait()
        return memory


def race(jobs: list[Job], rounds: int, seconds: float) -> list[Job]:
    """Measure the images per second of every job, in turns of about ``seconds``."""
    contenders = [Contender(job) for job in jobs]
    lengths = []
    for contender in contenders:
        contender.run(3)  # warm-up: compilation and caches
        lengths.append(max(2, round(seconds / (contender.run(3) / 3))))
    for _ in range(rounds):
        for contender, steps in zip(contenders, lengths, strict=True):
            speed = steps * contender.job["batch_size"] / contender.run(steps)
            contender.speeds.append(speed)
    return [
        {
            "name": c.job["name"],
            "precision": c.job["precision"],
            "images_per_second": round(statistics.median(c.speeds), 1),
            "turns": [round(speed, 1) for speed in c.speeds],
            "memory": c.stop(),
        }
        for c in contenders
    ]


def versions() -> dict[str, str]:
    names = ["torch", *PEERS.values()]
    return {name: importlib.metadata.version(name) for name in dict.fromkeys(names)}


def compare(model: str, part: str, options: argparse.Namespace) -> Job:
    common = {**MODELS[model], "part": part, "device": options.device, "data": options.data}
    for_vitcli = common | {"compile": False, "allocator": False}
    for_peers = common | {"compile": options.compile, "allocator": options.allocator}
    jobs = [for_vitcli | {"name": "vitcli", "precision": "auto"}]
    jobs += [for_peers | {"name": n, "precision": p} for n in PEERS for p in ("fp32", "bf16")]
    found = race(jobs, options.rounds, options.seconds)
    ours, *peers = found
    best = {n: max((f for f in peers if f["name"] == n), key=speed) for n in PEERS}
    fastest = max(best.values(), key=speed)
    return {
        "model": model,
        "part": part,
        "ours": ours["images_per_second"],
        "fastest_peer": fastest["images_per_second"],
        "peer": f"{fastest['name']} {fastest['precision']}",
        "ratio": round(ours["images_per_second"] / fastest["images_per_second"], 3),
        "ratios": {n: round(speed(ours) / speed(row), 3) for n, row in best.items()},
        "repetitions": options.rounds,
        "peers_compiled": options.compile,
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
    parser.add_argument("--parts", default="step,end_to_end")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--allocator", action="store_true")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    from vitcli.runner.machine.device import hardware, pick_device, source_commit

    facts = {
        "data": "cifar10" if options.data else "shapes",
        "hardware": hardware(pick_device(options.device)),
        "versions": versions(),
        "commit": source_commit()[0],
        "date": datetime.date.today().isoformat(),
    }
    rows = []
    for model in options.models.split(","):
        for part in options.parts.split(","):
            row = compare(model, part, options)
            rows.append(row | facts)
            print(  # noqa: T201
                f"{model} {part}: vitcli {row['ours']:,.0f} images/s, {row['ratio']:.2f} times"
                f" {row['peer']} ({row['fastest_peer']:,.0f})",
                flush=True,
            )
            if options.output:
                options.output.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
