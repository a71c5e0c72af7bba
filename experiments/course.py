"""Train the model of the course with several seeds, and write the accuracies to expect.

docs/tutorials/course.ipynb trains the same model and shows these accuracies beside the learner's.
The setting is read from the notebook's cell 'setting', with --quick with its changes for slow
laptops. By default the result is written to experiments/results/course-expected.json, or
course-expected-quick.json; CIFAR-10 is left out where it is not found.

    python experiments/course.py
    python experiments/course.py --quick
"""

import argparse
import ast
import json
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch

import vitcli
from vitcli.runner.machine.device import cpu_name, source_commit

ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "docs" / "tutorials" / "course.ipynb"
RESULTS = {
    quick: ROOT / "experiments" / "results" / f"course-expected{'-quick' * quick}.json"
    for quick in (False, True)
}
DATA_SETS = ("scenes", "cifar10")


def setting(quick: bool = False) -> dict[str, Any]:
    """Return the dict of the notebook's cell 'setting', or that of a slow laptop."""
    cells = {cell["id"]: cell for cell in json.loads(NOTEBOOK.read_text())["cells"]}
    found, changes = (
        ast.literal_eval(statement.value)
        for statement in ast.parse("".join(cells["setting"]["source"])).body
        if isinstance(statement, ast.Assign)
    )
    if quick:
        found["images"], found["fit"]["epochs"] = changes["images"], changes["epochs"]
    return dict(found)


def is_here(name: str) -> bool:
    """Return whether a data set can be read without a download."""
    try:
        vitcli.load_data(name)
    except vitcli.UserError as error:
        print(f"{name} is left out: {error}")  # noqa: T201
        return False
    return True


def accuracies(name: str, seed: int, chosen: dict[str, Any]) -> list[float]:
    """Train once, in one thread; return the test accuracy after each epoch."""
    torch.set_num_threads(1)
    data = vitcli.load_data(name, labels=chosen["images"])
    model = vitcli.build_model(seed=seed, **chosen["model"])
    training = vitcli.fit(model, data, seed=seed, **chosen["fit"])
    return [epoch["test_accuracy"] for epoch in training]


def expected(found: list[list[float]]) -> dict[str, Any]:
    """Return the accuracies of the seeds, with mean and standard deviation of each epoch."""
    epochs = [*zip(*found, strict=True)]
    return {"seeds": found, "mean": [*map(fmean, epochs)], "sd": [*map(stdev, epochs)]}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="the setting of slow laptops")
    parser.add_argument("--output", type=Path)
    asked = parser.parse_args()
    chosen, names = setting(asked.quick), [name for name in DATA_SETS if is_here(name)]
    commit, dirty = source_commit()
    with ProcessPoolExecutor(asked.workers, get_context("spawn")) as pool:
        futures = {
            name: [pool.submit(accuracies, name, seed, chosen) for seed in range(asked.seeds)]
            for name in names
        }
        data = {name: expected([f.result() for f in each]) for name, each in futures.items()}
    document = {
        "command": f"python experiments/course.py{' --quick' * asked.quick}",
        "commit": commit,
        "dirty": dirty,
        "date": str(date.today()),
        "hardware": f"{cpu_name()}, 1 thread",
        "torch": torch.__version__,
        "setting": chosen,
        "data": data,
    }
    output = asked.output or RESULTS[asked.quick]
    output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
