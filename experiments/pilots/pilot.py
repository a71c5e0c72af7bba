"""One pilot run: train an experiment with changes, and append what it reached to the pilots' log.

Usage: python -m experiments.pilots.pilot EXPERIMENT [--seed N] [--log FILE] [-s FIELD=VALUE]...
A pilot chooses a recipe, so it gets no test image: 5,000 training images are kept for validation.
Its seeds begin at 100, so that no pilot is a trial of the study that the recipe is for. Each run is
one line of experiments/pilots/EXPERIMENT.jsonl; its changes are those of the experiment's file at
the commit of the line. The first two pilots of cifar10-plain were runs of ``vitcli train``, which
measures the test images at the end; their lines and the choice do not use that.
"""

import argparse
import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from vitcli.runner.experiment.config import load_experiment, parse_sets
from vitcli.runner.train.start import Request, start

HERE = Path(__file__).parent
VAL_SPLIT = 5000
"""Number of training images that are kept for validation."""
FIRST_SEED = 100
say = partial(print, file=sys.stderr, flush=True)


def pilot(name: str, seed: int, changes: list[str]) -> dict[str, Any]:
    """Train an experiment and return the line of the log."""
    sets = parse_sets([f"data.val_split={VAL_SPLIT}", *changes]) | {"seed": seed}
    request = Request(without_test=True)
    done = start(load_experiment(name, sets), request, on_event=say, on_message=say)
    result, meta = done.result, done.run.read("meta.json")
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "seed": seed,
        "changes": changes,
        "val_accuracy": result["val_accuracy"],
        "train_loss": result["train_loss"],
        "parameters": result["parameters"],
        "pflop": round(result["train_flops"] / 1e15, 4),
        "train_seconds": round(result["train_seconds"]),
        **{key: meta[key] for key in ("commit", "torch", "hardware", "precision", "kernels")},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("experiment")
    parser.add_argument("--seed", type=int, default=FIRST_SEED)
    parser.add_argument("--log", type=Path, help="default: EXPERIMENT.jsonl beside this file")
    parser.add_argument("-s", dest="changes", action="append", default=[], metavar="FIELD=VALUE")
    options = parser.parse_args()
    if options.seed < FIRST_SEED:
        parser.error(f"--seed {options.seed}: the seeds of pilots begin at {FIRST_SEED}")
    line = pilot(options.experiment, options.seed, options.changes)
    log = options.log or HERE / f"{Path(options.experiment).stem}.jsonl"
    with log.open("a") as file:
        file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
