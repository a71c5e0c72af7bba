"""Compare a study whose workers are pinned to cores of their own with one whose workers are not.

Usage: python experiments/speed/pinned_workers.py [PAIRS] [NOISE]
The study has two short trials, trained at once. Pinned and unpinned runs take turns, A B B A ...;
NOISE other processes compute meanwhile. Printed are the seconds of all runs and their medians.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STUDY = """
base: ablation-quickstart
train: {epochs: 1, limit_batches: 40, precision: fp32}
seeds: [0]
variants: {baseline: {}, single-head: {model.num_heads: 1}}
"""
VITCLI = (sys.executable, "-m", "vitcli", "ablate", "short.yaml", "-j", "2", "--rerun")
BUSY = (sys.executable, "-c", "while True: sum(range(100_000))")
SWITCHES = ("--pin", "--no-pin")


def main() -> None:
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    noise = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    seconds: dict[str, list[float]] = {switch: [] for switch in SWITCHES}
    busy = [subprocess.Popen(BUSY) for _ in range(noise)]
    try:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "short.yaml").write_text(STUDY)
            for pair in range(pairs):
                for switch in SWITCHES if pair % 2 else reversed(SWITCHES):
                    began = time.perf_counter()
                    subprocess.run([*VITCLI, switch], cwd=folder, check=True, capture_output=True)
                    seconds[switch].append(time.perf_counter() - began)
    finally:
        for process in busy:
            process.kill()
    pinned, shared = (statistics.median(seconds[switch]) for switch in SWITCHES)
    for switch, values in seconds.items():
        print(f"{switch}: {', '.join(f'{value:.1f}' for value in values)} s")  # noqa: T201
    print(f"pinned workers are {shared / pinned:.2f} times as fast, beside {noise} busy processes")  # noqa: T201


if __name__ == "__main__":
    main()
