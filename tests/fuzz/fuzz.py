"""Fuzz a target with damaged inputs, guided by coverage, and save the inputs that crash it.

Usage: python -m tests.fuzz.fuzz TARGET [--runs 100000] [--corpus DIR] [--record]
Needs: pip install atheris. A crashing input is saved below tests/fuzz/crashes/TARGET, and the exit
code is 77. Without a crash the last line is JSON: target, runs, seconds.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

LENGTHS = {"yaml": 200, "yaml_text": 100}
"""Longest inputs in bytes. YAML is slow to read, and short texts can contain all of its syntax."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Fuzz the readers of vitcli, guided by coverage")
    parser.add_argument("target")
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    import atheris

    import vitcli  # noqa: F401

    with atheris.instrument_imports(
        include=["vitcli", "yaml", "json", "PIL", "tensorboard"], enable_loader_override=False
    ):
        from tests.faults.results import keep
        from tests.fuzz.targets import CRASHES, TARGETS, seeds

    target, count = TARGETS[options.target], 0
    began = time.monotonic()

    def run(data: bytes) -> None:
        nonlocal count
        target(data)
        count += 1
        if count == options.runs:  # libFuzzer then ends the process without returning to Python
            report()

    def report() -> None:
        facts = {"target": options.target, "runs": count}
        facts["seconds"] = round(time.monotonic() - began)
        print(json.dumps(facts), flush=True)  # noqa: T201
        if options.record:
            keep({"campaign": "fuzz", **facts})

    corpus = options.corpus or Path(tempfile.mkdtemp())
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(seeds(options.target)):
        (corpus / f"seed{number}").write_bytes(seed)
    crashes = CRASHES / options.target
    crashes.mkdir(parents=True, exist_ok=True)
    words = [sys.argv[0], str(corpus), f"-runs={options.runs}", f"-artifact_prefix={crashes}/"]
    words += ["-timeout=10", "-rss_limit_mb=4096", "-print_final_stats=0"]
    words += [f"-max_len={LENGTHS.get(options.target, 4096)}"]
    atheris.Setup(words, run)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
