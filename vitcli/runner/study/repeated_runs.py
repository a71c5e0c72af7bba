"""Finished runs of one experiment with different seeds, as the document of a study with one row."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from vitcli.core.spec import ExperimentSpec
from vitcli.core.spec.task import TaskRow
from vitcli.runner.errors import ConfigError, InputError, ResourceError
from vitcli.runner.evaluate.teacher import teacher_run
from vitcli.runner.experiment.config import (
    FORMAT,
    SIZES,
    STATISTICS,
    config_hash,
    find_experiment,
    load_experiment,
)
from vitcli.runner.experiment.diff import TEACHER_WEIGHTS, changed_fields, differences
from vitcli.runner.experiment.yaml_text import format_value
from vitcli.runner.files import commit
from vitcli.runner.run.folder import RESULT_STATES, RunDir
from vitcli.runner.run.listing import is_dirty
from vitcli.runner.run.predictions import PerImage, read_per_image
from vitcli.runner.run.record import assign_fields, curve, readable_metrics, refuse_unreadable
from vitcli.runner.study.images import join
from vitcli.runner.study.result import StudyResult, TrialResult, VariantResult
from vitcli.runner.study.table import to_json
from vitcli.runner.text import portable, portable_fields

SHARED = ("experiment", "data_hash", "commit", "hardware", "torch")
MEASURED = ("train_loss", "train_seconds", "images_per_second")


def collect_runs(runs: Sequence[RunDir]) -> StudyResult:
    """Return one document for runs that differ in their seeds only."""
    metas = [_read_meta(run) for run in runs]
    specs = [run.trained_spec() for run in runs]
    results = [run.read("result.json") for run in runs]
    _refuse_mixture(runs, metas, specs, results)
    meta, spec = metas[0], specs[0]
    result = next(filter(None, results), None)
    if result is None:
        raise InputError("none of these runs has a result: all of them diverged")
    trials = sorted(map(_trial_result, runs, specs, results), key=lambda trial: trial.seed)
    row = VariantResult(
        variant="baseline",
        parameters=result["parameters"],
        forward_flops=result.get("forward_flops"),
        trials=tuple(trials),
        images=None
        if spec.data.folds  # each seed has other test images
        else join(_per_image(runs, spec.task.row), spec.task.row.headline).crossed(),
    )
    return StudyResult(
        name=meta["experiment"],
        command=training_command(meta, spec, [trial.seed for trial in trials]),
        commits=_as_tuple(meta.get("commit")),
        dirty=any(map(is_dirty, metas)),
        inexact=tuple(run.name for run, each in zip(runs, metas, strict=True) if "inexact" in each),
        date=max(str(each.get("started", ""))[:10] for each in metas),
        hardware=_as_tuple(meta.get("hardware")),
        torch=_as_tuple(meta.get("torch")),
        precision=_as_tuple(result.get("precision")),
        kernels=_as_tuple(result.get("kernels")),
        threads=meta.get("threads") or 1,
        data=str(portable(spec.data.name)),
        data_hash=meta["data_hash"],
        num_train=meta.get("num_train"),
        num_test=result.get("num_test"),
        epochs=spec.train.epochs,
        num_comparisons=0,
        base_config=portable_fields(changed_fields(spec.replace(seed=0))),
        task=spec.task.name,
        rows=(row,),
    )


def _per_image(runs: Sequence[RunDir], row: TaskRow) -> dict[int, PerImage | None]:
    """Return seed -> what the predictions of a finished run say of each image."""
    found: dict[int, PerImage | None] = {}
    for run in runs:
        path = run.path / "predictions.npz"
        if path.exists():
            try:
                found[run.spec().seed] = read_per_image(path, row)
            except (OSError, ValueError):
                found[run.spec().seed] = None
    return found


def _as_tuple(value: str | None) -> tuple[str, ...]:
    return () if value is None else (value,)


def _read_meta(run: RunDir) -> dict[str, Any]:
    """Return meta.json of a run that has ended and has every file that a document needs."""
    refuse_unreadable(run)
    meta, state = run.read("meta.json"), run.status()["state"]
    if state not in RESULT_STATES:
        raise InputError(
            f"{run.name} is not finished ({state}); finish it: {run.command('train --resume')}"
        )
    if not {"experiment", "data_hash"} <= meta.keys():
        raise InputError(f"{run.name}: its meta.json is missing or damaged")
    if (
        state == "finished"
        and not {f"test_{run.spec().task.row.headline.name}", "parameters"}
        <= run.read("result.json").keys()
    ):
        raise InputError(f"{run.name}: its result.json is missing or damaged")
    return meta


def _refuse_mixture(
    runs: Sequence[RunDir],
    metas: Sequence[dict[str, Any]],
    specs: Sequence[ExperimentSpec],
    results: Sequence[dict[str, Any]],
) -> None:
    measured = next(filter(None, results), {})
    for run, meta, spec, result in zip(runs, metas, specs, results, strict=True):
        fields = [key.replace("_", " ") for key in SHARED if meta.get(key) != metas[0].get(key)]
        differing = differences(specs[0], spec)
        if teacher_run(spec) != teacher_run(specs[0]):  # each seed has its own
            differing.pop(TEACHER_WEIGHTS, None)
        fields += [name for name in differing if name != "seed"]
        arithmetic = ("precision", "kernels") if result else ()
        fields += [name for name in arithmetic if result.get(name) != measured.get(name)]
        if fields:
            names = ", ".join(fields)
            raise ConfigError(
                f"{run.name} and {runs[0].name} differ in more than the seed: {names}"
            )
    if len({spec.seed for spec in specs}) < len(specs):
        raise ConfigError("two of these runs have the same seed; name one run per seed")


def _trial_result(run: RunDir, spec: ExperimentSpec, result: dict[str, Any]) -> TrialResult:
    records = readable_metrics(run)
    row = spec.task.row
    numbers = {f"test_{name}": result.get(f"test_{name}") for name in row.numbers}
    known = {name: value for name, value in numbers.items() if value is not None}
    measured: dict[str, Any] = {name: result.get(name) for name in MEASURED}
    try:
        return TrialResult(
            seed=spec.seed,
            state=run.status()["state"],
            config_hash=config_hash(spec),
            epochs=result.get("epochs", records[-1]["epoch"] if records else 0),
            curve=curve(records, f"test_{row.headline.name}"),
            **measured | assign_fields(TrialResult, known),
        )
    except ValidationError as error:
        raise InputError(f"{run.name}: its result.json is missing or damaged") from error


def training_command(meta: dict[str, Any], spec: ExperimentSpec, seeds: Sequence[int]) -> str:
    """Return the command that trains these runs again, whatever the user typed for them."""
    name = meta["experiment"]
    try:
        find_experiment(name)
    except ConfigError as error:
        raise ConfigError(
            f"no command can repeat these runs: no experiment is called {name!r};"
            " put its file into experiments/"
        ) from error
    words = ["vitcli", "train", name]
    asked = without_data(spec, load_experiment(name).spec, str(meta.get("config_hash")))
    for field, (_, used) in differences(load_experiment(name).spec, asked).items():
        if field not in ("seed", "code", TEACHER_WEIGHTS):
            words += ["-s", f"{field}={format_value(portable(used))}"]
    words += [word for file in spec.code if file.endswith(".py") for word in ("--code", file)]
    if len(seeds) == 1:
        return shlex.join([*words, "--seed", str(seeds[0])])
    numbers = " ".join(map(str, seeds))
    return f"for seed in {numbers}; do {shlex.join(words)} --seed $seed; done"


def without_data(spec: ExperimentSpec, file: ExperimentSpec, asked_hash: str) -> ExperimentSpec:
    """Return a run's spec without the fields that it took from its data set.

    A run stores mean and std in the same way, whether the user typed them or the data set gave
    them. The hash of the requested configuration tells which.
    """
    model = {key: None for key in SIZES if getattr(file.model, key) is None}
    data = {key: None for key in STATISTICS if getattr(file.data, key) is None}
    names = {"class_names": file.data.class_names}
    facts = spec.replace(model=spec.model.replace(**model), data=spec.data.replace(**names))
    asked = facts.replace(data=facts.data.replace(**data))
    hashes = [config_hash(asked, version) for version in range(1, FORMAT + 1)]
    return asked if asked_hash in hashes else facts


def write(document: StudyResult, path: Path) -> None:
    """Write a document; create its folder if needed."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        commit(path, f"{to_json(document)}\n".encode())
    except OSError as error:
        raise ResourceError(f"{path}: cannot be written: {error.strerror}") from error
