"""Measure how long vitcli takes to look at a study with many finished trials.

Usage: python experiments/speed/large_study.py [--variants 10] [--seeds 100] [-o FILE.json]

The trials are made, not trained: files of the usual sizes, with predictions for 10,000 images. It
prints the seconds of each command, the start of Python included, and of the plan alone.
"""

import argparse
import io
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from vitcli.runner.machine.device import hardware, pick_device
from vitcli.runner.run.folder import RunDir
from vitcli.runner.study.collect import read_results
from vitcli.runner.study.definition import Study, Trial, load_study
from vitcli.runner.study.page import publish
from vitcli.runner.study.plan import plan_study

NUM_IMAGES, NUM_CLASSES = 10_000, 10
COMMANDS = {
    "status": ("ablate", "large.yaml", "--status"),
    "table": ("ablate", "large.yaml", "--table-only"),
    "page of runs": ("runs", "page", "runs"),
}


def make_study(variants: int, seeds: int) -> Study:
    """Write the file of a study, and a finished run for each of its trials."""
    lines = ["question: is a large study quick?", "base: cifar10-tiny", "threads: 1"]
    lines += [f"seeds: {list(range(seeds))}", "variants:", "  full: {}"]
    lines += [f"  rate{i}: {{optim.lr: {1e-3 + 1e-5 * i:.5f}}}" for i in range(1, variants)]
    Path("large.yaml").write_text("\n".join(lines) + "\n")
    study = load_study("large.yaml")
    random = np.random.default_rng(0)
    labels = random.integers(0, NUM_CLASSES, NUM_IMAGES)
    for trial in study.trials():
        logits = random.normal(size=(NUM_IMAGES, NUM_CLASSES)).astype(np.float32)
        logits[np.arange(NUM_IMAGES), labels] += 2
        make_trial(trial, logits, labels)
    return study


def make_trial(trial: Trial, logits: np.ndarray, labels: np.ndarray) -> None:
    """Write the files of a finished trial."""
    run, epochs = RunDir(Path("runs/large") / trial.folder), trial.spec.train.epochs
    run.create(trial.spec)
    accuracy = float((logits.argmax(1) == labels).mean())
    curve = {"train_loss": 1.0, "images_per_second": 1000.0, "test_accuracy": accuracy}
    run.set_metrics([{"step": 100 * e, "epoch": e} | curve for e in range(1, epochs + 1)])
    meta = {"seed": trial.spec.seed, "config_hash": trial.config_hash, "data_hash": "0" * 64}
    run.set_meta(meta | {"threads": 1, "precision": "fp32"})
    result = {"test_accuracy": accuracy, "test_loss": 1.0, "num_test": NUM_IMAGES}
    run.set_result(result | {"precision": "fp32", "train_seconds": 60.0})
    with io.BytesIO() as file:
        np.savez(file, logits=logits, labels=labels)
        (run.path / "predictions.npz").write_bytes(file.getvalue())
    run.set_status("finished", 100 * epochs)


def seconds_of(words: Sequence[str]) -> float:
    """Return the seconds of a command of vitcli."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "vitcli", *words], check=True, capture_output=True)
    return time.perf_counter() - began


def measure(study: Study) -> dict[str, float]:
    """Return what was measured -> seconds."""
    found = {name: seconds_of(words) for name, words in COMMANDS.items()}
    root = Path("runs/large")
    began = time.perf_counter()
    plan_study(study, root, ())
    found["plan"] = time.perf_counter() - began
    doc = read_results(study, root)
    began = time.perf_counter()
    publish(doc, root)
    return found | {"report": time.perf_counter() - began}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--variants", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("-o", "--output", type=Path)
    args = parser.parse_args()
    output = args.output.resolve() if args.output else None
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        study = make_study(args.variants, args.seeds)
        found = measure(study)
        os.chdir("/")
    for name, seconds in found.items():
        print(f"{name:13} {seconds:6.2f} s")  # noqa: T201
    if output:
        trials = len(study.trials())
        facts = {"hardware": hardware(pick_device("cpu")), "python": platform.python_version()}
        output.write_text(json.dumps({"trials": trials, **facts, "seconds": found}, indent=2))


if __name__ == "__main__":
    main()
