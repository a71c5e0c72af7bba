"""Measure the cost of checkpoints in a training, and the seconds until a resumed run's first step.

Usage: python experiments/speed/checkpoint_cost.py [--experiment NAME] [--epochs 6]
           [--rounds 5] [-o FILE]
Trainings with and without checkpoints, metrics and status after epochs take turns, A B A B, in one
process. Then a stopped run is resumed in the same process, so that imports do not count.
"""

import argparse
import contextlib
import json
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitcli.core.objectives.classify import Classify
from vitcli.runner.errors import StoppedError
from vitcli.runner.experiment.config import load_experiment
from vitcli.runner.machine.device import hardware, pick_device, source_commit
from vitcli.runner.run.folder import RunDir
from vitcli.runner.train import trainer as training
from vitcli.runner.train.events import EpochDone, Event, Started
from vitcli.runner.train.prepare import Request
from vitcli.runner.train.train import train


@contextlib.contextmanager
def without_saving() -> Iterator[None]:
    """Disable all writing after epochs."""
    originals = training.Trainer.save, RunDir.set_metrics, RunDir.set_status
    training.Trainer.save = lambda self: None  # type: ignore[method-assign]
    RunDir.set_metrics = lambda self, records: None  # type: ignore[method-assign]
    RunDir.set_status = lambda self, *args: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        training.Trainer.save, RunDir.set_metrics, RunDir.set_status = originals  # type: ignore[method-assign]


def seconds_of(experiment: Any, device: str) -> float:
    """Return the seconds from the first step to the end of the last epoch."""
    began = 0.0

    def start_clock(event: Event) -> None:
        nonlocal began
        if isinstance(event, Started):
            began = time.perf_counter()

    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "run"
        train(experiment, Request(output=output, device=device, on_event=start_clock))
        return time.perf_counter() - began


class FirstStepError(Exception):
    """Signal that the first step is done."""


def resume_seconds(experiment: Any, device: str) -> float:
    """From the call to the end of the first step of a run that was stopped."""
    original = Classify.after_step

    def stop(self: Any) -> None:
        raise FirstStepError

    with tempfile.TemporaryDirectory() as name:
        request = Request(output=Path(name) / "run", device=device, resume=True)
        with contextlib.suppress(StoppedError):
            train(experiment, replace(request, on_event=interrupt_after_an_epoch))
        Classify.after_step = stop  # type: ignore[method-assign]
        began = time.perf_counter()
        try:
            train(experiment, request)
        except FirstStepError:
            return time.perf_counter() - began
        finally:
            Classify.after_step = original  # type: ignore[method-assign]
    raise SystemExit("the run was finished before it could be resumed")


def interrupt_after_an_epoch(event: Event) -> None:
    if isinstance(event, EpochDone):
        os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the cost of checkpoints and of a resume")
    parser.add_argument("--experiment", default="quickstart")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    experiment = load_experiment(options.experiment, {"train.epochs": options.epochs})
    seconds_of(experiment, options.device)  # warm-up: decoding, compilation, imports
    ratios = []
    for _ in range(options.rounds):
        with without_saving():
            bare = seconds_of(experiment, options.device)
        ratios.append(seconds_of(experiment, options.device) / bare)
    resumes = [resume_seconds(experiment, options.device) for _ in range(options.rounds)]
    result = {
        "experiment": options.experiment,
        "epochs": options.epochs,
        "cost": round(statistics.median(ratios) - 1, 4),
        "ratios": [round(ratio, 4) for ratio in ratios],
        "resume_seconds": round(statistics.median(resumes), 3),
        "hardware": hardware(pick_device(options.device)),
        "commit": source_commit()[0],
    }
    text = json.dumps(result, indent=1)
    if options.output:
        options.output.write_text(text + "\n")
    print(text)  # noqa: T201


if __name__ == "__main__":
    main()
