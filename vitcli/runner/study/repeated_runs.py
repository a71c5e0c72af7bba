"""Finished runs of one experiment, collected into a file of ``experiments/results/``."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vitcli.core.spec import ExperimentSpec
from vitcli.runner.errors import ConfigError, InputError, ResourceError
from vitcli.runner.experiment.config import (
    FORMAT,
    SIZES,
    STATISTICS,
    config_hash,
    find_experiment,
    load_experiment,
)
from vitcli.runner.experiment.diff import differences
from vitcli.runner.experiment.yaml_text import flow
from vitcli.runner.files import commit_json
from vitcli.runner.run.compare import readable_metrics
from vitcli.runner.run.folder import RunDir
from vitcli.runner.text import portable

STATES = ("finished", "diverged")
"""A diverged training is a result too: leaving it out would flatter the rest."""
SHARED = ("experiment", "data_hash", "commit", "hardware", "torch")
MEASURED = ("test_accuracy", "test_loss", "train_loss", "train_seconds", "images_per_second")


def collect(runs: Sequence[RunDir]) -> dict[str, Any]:
    """One document about runs that differ in nothing but their seeds.

    Raises:
        InputError: A run is not at its end, or has no record of what it was.
        ConfigError: The runs do not belong together.
    """
    metas = [_meta(run) for run in runs]
    specs = [run.spec() for run in runs]
    results = [run.read("result.json") for run in runs]
    _refuse_mixture(runs, metas, specs, results)
    meta, spec = metas[0], specs[0]
    result = next(filter(None, results), None)
    if result is None:
        raise InputError("none of these runs has a result: all of them diverged")
    trials = sorted(map(_trial, runs, specs, results), key=lambda trial: int(trial["seed"]))
    row = {"variant": "baseline", "parameters": result["parameters"], "trials": trials}
    row["forward_flops"] = result.get("forward_flops")
    return {
        "name": meta["experiment"],
        "command": command(meta, spec, [trial["seed"] for trial in trials]),
        "commit": meta.get("commit"),
        "dirty": any(map(_is_dirty, metas)),
        "inexact": any("inexact" in meta for meta in metas),
        "date": max(str(each.get("started", ""))[:10] for each in metas),
        "hardware": meta.get("hardware"),
        "torch": meta.get("torch"),
        "precision": result.get("precision"),
        "kernels": result.get("kernels"),
        "data": portable(spec.data.name),
        "data_hash": meta["data_hash"],
        "num_test": result.get("num_test"),
        "rows": [row],
    }


def _meta(run: RunDir) -> dict[str, Any]:
    """meta.json of a run that is at its end and says all that a result needs."""
    meta, state = run.read("meta.json"), run.status()["state"]
    if state not in STATES:
        raise InputError(
            f"{run.name} is not finished ({state}); finish it: vitcli train --resume {run.name}"
        )
    if not {"experiment", "data_hash"} <= meta.keys():
        raise InputError(f"{run.name}: its meta.json is missing or damaged")
    if (
        state == "finished"
        and not {"test_accuracy", "parameters"} <= run.read("result.json").keys()
    ):
        raise InputError(f"{run.name}: its result.json is missing or damaged")
    return meta


def _is_dirty(meta: dict[str, Any]) -> bool:
    """Whether any part of a run was trained by other code than its commit."""
    parts = [meta, *meta.get("sessions", [])]
    return any(part.get("dirty") or part.get("commit") != meta.get("commit") for part in parts)


def _refuse_mixture(
    runs: Sequence[RunDir],
    metas: Sequence[dict[str, Any]],
    specs: Sequence[ExperimentSpec],
    results: Sequence[dict[str, Any]],
) -> None:
    measured = next(filter(None, results), {})
    for run, meta, spec, result in zip(runs, metas, specs, results, strict=True):
        fields = [key.replace("_", " ") for key in SHARED if meta.get(key) != metas[0].get(key)]
        fields += [name for name in differences(specs[0], spec) if name != "seed"]
        arithmetic = ("precision", "kernels") if result else ()
        fields += [name for name in arithmetic if result.get(name) != measured.get(name)]
        if fields:
            names = ", ".join(fields)
            raise ConfigError(
                f"{run.name} and {runs[0].name} differ in more than the seed: {names}"
            )
    if len({spec.seed for spec in specs}) < len(specs):
        raise ConfigError("two of these runs have the same seed; name one run a seed")


def _trial(run: RunDir, spec: ExperimentSpec, result: dict[str, Any]) -> dict[str, Any]:
    records = readable_metrics(run)
    done = records[-1]["epoch"] if records else 0
    return {
        "seed": spec.seed,
        "state": run.status()["state"],
        "epochs": result.get("epochs", done),
        "curve": [[r["epoch"], r["test_accuracy"]] for r in records if "test_accuracy" in r],
        **{name: result.get(name) for name in MEASURED},
    }


def command(meta: dict[str, Any], spec: ExperimentSpec, seeds: Sequence[int]) -> str:
    """What to type to get these runs again, whatever was typed to get them."""
    name = meta["experiment"]
    try:
        find_experiment(name)
    except ConfigError as error:
        raise ConfigError(
            f"nobody could repeat this: no experiment is called {name!r};"
            " put the file that was trained into experiments/"
        ) from error
    words = ["vitcli", "train", name]
    asked = without_data(spec, load_experiment(name).spec, str(meta.get("config_hash")))
    for field, (_, used) in differences(load_experiment(name).spec, asked).items():
        if field != "seed":
            words += ["-s", f"{field}={flow(portable(used))}"]
    if len(seeds) == 1:
        return shlex.join([*words, "--seed", str(seeds[0])])
    numbers = " ".join(map(str, seeds))
    return f"for seed in {numbers}; do {shlex.join(words)} --seed $seed; done"


def without_data(spec: ExperimentSpec, file: ExperimentSpec, asked_hash: str) -> ExperimentSpec:
    """A run's spec without what it took from its data set where the file leaves that open.

    Mean and std that were typed look the same in a run as those of the data set; the hash of what
    was asked for tells them apart.
    """
    model = {key: None for key in SIZES if getattr(file.model, key) is None}
    data = {key: None for key in STATISTICS if getattr(file.data, key) is None}
    names = {"class_names": file.data.class_names}
    facts = spec.replace(model=spec.model.replace(**model), data=spec.data.replace(**names))
    asked = facts.replace(data=facts.data.replace(**data))
    hashes = [config_hash(asked, version) for version in range(1, FORMAT + 1)]
    return asked if asked_hash in hashes else facts


def write(document: dict[str, Any], path: Path) -> None:
    """Write a document, making the folder that it goes into."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        commit_json(path, document)
    except OSError as error:
        raise ResourceError(f"{path}: cannot be written: {error.strerror}") from error
