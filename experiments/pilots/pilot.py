"""One pilot run: train an experiment with changes, and append what it reached to the pilots' log.

Usage: python -m experiments.pilots.pilot EXPERIMENT [--seed N] [--log FILE] [-s FIELD=VALUE]...
       python -m experiments.pilots.pilot --queue FILE
Each line of a queue's file has the arguments of a pilot; # begins a comment. Pilots that the log
contains are skipped, so a queue that was killed can be started again. A teacher whose run is not
here is trained again, if a later pilot needs it.

A pilot chooses a recipe, so it gets no test image: 5,000 training images are kept for validation.
Its seeds begin at 100, so that no pilot is a trial of the study that the recipe is for. Each run is
one line of experiments/pilots/EXPERIMENT.jsonl; its changes are those of the experiment's file at
the commit of the line. The first two pilots of cifar10-plain were runs of ``vitcli train``, which
measures the test images at the end; their lines and the choice do not use that.
"""

import argparse
import json
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from vitcli.runner.errors import DivergedError, UserError
from vitcli.runner.evaluate.teacher import teacher_run
from vitcli.runner.experiment.config import Experiment, load_experiment, parse_sets
from vitcli.runner.run.folder import RUNS, default_path
from vitcli.runner.train.prepare import Request
from vitcli.runner.train.train import train as run_training

HERE = Path(__file__).parent
VAL_SPLIT = 5000
"""Number of training images that are kept for validation."""
FIRST_SEED = 100
say = partial(print, file=sys.stderr, flush=True)


def experiment_of(pilot: argparse.Namespace) -> Experiment:
    """Return the experiment that a pilot trains."""
    sets = parse_sets([f"data.val_split={VAL_SPLIT}", *pilot.changes]) | {"seed": pilot.seed}
    return load_experiment(pilot.experiment, sets)


def output_of(pilot: argparse.Namespace) -> Path:
    """Return the run folder; a changed experiment's lies below runs/pilots, so none confuses it."""
    experiment, is_changed = experiment_of(pilot), bool(pilot.changes)
    name = f"pilots/{experiment.name}" if is_changed else experiment.name
    return default_path(name, experiment.spec, is_changed)


def train(pilot: argparse.Namespace) -> dict[str, Any]:
    """Train an experiment, or continue its run, and return the line of the log."""
    experiment = experiment_of(pilot)
    request = Request(
        output=output_of(pilot),
        without_test=True,
        resume=True,
        data_dir=pilot.data_dir,
        on_event=say,
        on_message=say,
    )
    line = {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "seed": pilot.seed,
        "changes": pilot.changes,
    }
    try:
        done = run_training(experiment, request)
    except DivergedError as error:
        return line | {"val_accuracy": None, "reason": str(error)}
    result, meta = done.result, done.meta
    return line | {
        "val_accuracy": result["val_accuracy"],
        "train_loss": result["train_loss"],
        "parameters": result["parameters"],
        "pflop": round(result["train_flops"] / 1e15, 4),
        "train_seconds": round(result["train_seconds"]),
        **{key: meta[key] for key in ("commit", "torch", "hardware", "precision", "kernels")},
    }


def log_of(pilot: argparse.Namespace) -> Path:
    return pilot.log or HERE / f"{Path(pilot.experiment).stem}.jsonl"


def is_missing_teacher(pilot: argparse.Namespace, later: Sequence[argparse.Namespace]) -> bool:
    """Return whether a run that is not here teaches one of the later pilots that will train."""
    waiting = [experiment_of(each).spec for each in later if not is_logged(each)]
    run = output_of(pilot)
    return not run.exists() and str(run.relative_to(RUNS)) in map(teacher_run, waiting)


def is_logged(pilot: argparse.Namespace) -> bool:
    log = log_of(pilot)
    lines = map(json.loads, log.read_text().splitlines() if log.exists() else ())
    return any((line["seed"], line["changes"]) == (pilot.seed, pilot.changes) for line in lines)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("experiment", nargs="?")
    parser.add_argument("--queue", type=Path, help="a file with the arguments of a pilot a line")
    parser.add_argument("--seed", type=int, default=FIRST_SEED)
    parser.add_argument("--log", type=Path, help="default: EXPERIMENT.jsonl beside this file")
    parser.add_argument("--data-dir", type=Path, help="folder of the data set")
    parser.add_argument("-s", dest="changes", action="append", default=[], metavar="FIELD=VALUE")
    return parser


def read_pilots(words: list[str]) -> Iterator[argparse.Namespace]:
    """Return the pilots that a command line asks for: itself, or those of its queue."""
    parser = build_parser()
    options = parser.parse_args(words)
    if bool(options.queue) == bool(options.experiment):
        parser.error("name an experiment or a --queue")
    if options.queue:
        common = ["--data-dir", str(options.data_dir)] if options.data_dir else []
        if not options.queue.is_file():
            parser.error(f"--queue {options.queue}: no such file")
        for line in options.queue.read_text().splitlines():
            if pilot := shlex.split(line, comments=True):
                yield from read_pilots([*common, *pilot])
    elif options.seed < FIRST_SEED:
        parser.error(f"--seed {options.seed}: the seeds of pilots begin at {FIRST_SEED}")
    else:
        yield options


def main() -> None:
    pilots = list(read_pilots(sys.argv[1:]))
    for i, pilot in enumerate(pilots):
        is_known = is_logged(pilot)
        if is_known and not is_missing_teacher(pilot, pilots[i + 1 :]):
            say(f"skipped, in the log: {pilot.experiment} {pilot.changes}")
            continue
        line = train(pilot)
        if not is_known:
            with log_of(pilot).open("a") as file:
                file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(error.exit_code)
