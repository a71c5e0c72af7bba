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
from vitcli.runner.run.predictions import PerImage, read_per_image
from vitcli.runner.run.record import (
    Meta,
    Record,
    TrialState,
    read_record,
    readable_metrics,
    refuse_unreadable,
)
from vitcli.runner.study.collect import trial_result
from vitcli.runner.study.images import join
from vitcli.runner.study.result import StudyResult, VariantResult
from vitcli.runner.study.table import to_json
from vitcli.runner.text import portable, portable_fields

SHARED = ("experiment", "data_hash", "commit", "hardware", "torch")


def collect_runs(runs: Sequence[RunDir]) -> StudyResult:
    """Return one document for runs that differ in their seeds only."""
    specs = [run.trained_spec() for run in runs]
    records = [_read_record(run, spec) for run, spec in zip(runs, specs, strict=True)]
    _refuse_mixture(runs, specs, records)
    spec, record, meta = specs[0], records[0], runs[0].read("meta.json")
    results = [record.result for record in records if record.state == "finished"]
    if not results:
        raise InputError("none of these runs has a result: all of them diverged")
    trials = [
        trial_result(spec.seed, config_hash(spec), TrialState(state=record.state, record=record))
        for spec, record in zip(specs, records, strict=True)
    ]
    trials.sort(key=lambda trial: trial.seed)
    images = {
        spec.seed: _per_image(run, spec.task.row)
        for run, spec, record in zip(runs, specs, records, strict=True)
        if record.state == "finished" and not spec.data.folds  # each seed has other test images
    }
    row = VariantResult(
        variant="baseline",
        parameters=results[0].parameters,
        forward_flops=results[0].forward_flops,
        trials=tuple(trials),
        images=join(images, spec.task.row.headline).crossed(),
    )
    session = record.sessions[0]
    return StudyResult(
        name=meta["experiment"],
        command=training_command(meta, spec, [trial.seed for trial in trials]),
        commits=_as_tuple(session.commit),
        dirty=any(session.dirty for record in records for session in record.sessions),
        inexact=tuple(
            run.name for run, record in zip(runs, records, strict=True) if record.is_inexact
        ),
        date=max((record.sessions[0].started or "")[:10] for record in records),
        hardware=_as_tuple(session.hardware),
        torch=_as_tuple(session.torch),
        precision=_as_tuple(results[0].precision),
        kernels=_as_tuple(results[0].kernels),
        threads=session.threads or 1,
        data=str(portable(spec.data.name)),
        data_hash=record.data_hash,
        num_train=record.num_train,
        num_test=results[0].num_test,
        epochs=spec.train.epochs,
        num_comparisons=0,
        base_config=portable_fields(changed_fields(spec.replace(seed=0))),
        task=spec.task.name,
        rows=(row,),
    )


def _per_image(run: RunDir, row: TaskRow) -> PerImage | None:
    try:
        return read_per_image(run.path / "predictions.npz", row)
    except (OSError, ValueError):
        return None


def _as_tuple(value: str | None) -> tuple[str, ...]:
    return () if value is None else (value,)


def _read_record(run: RunDir, spec: ExperimentSpec) -> Record:
    """Return the record of a run that has ended and has every file that a document needs."""
    refuse_unreadable(run)
    meta, state = run.read("meta.json"), run.status()["state"]
    if state not in RESULT_STATES:
        raise InputError(
            f"{run.name} is not finished ({state}); finish it: {run.command('train --resume')}"
        )
    if not {"experiment", "data_hash"} <= meta.keys():
        raise InputError(f"{run.name}: its meta.json is missing or damaged")
    try:
        known = Meta.model_validate(meta)
        record = read_record(run, spec, state, "", known, readable_metrics(run))
    except ValidationError as error:
        raise InputError(f"{run.name}: its meta.json or result.json is damaged") from error
    headline = record.result.number(f"test_{spec.task.row.headline.name}")
    if state == "finished" and (headline is None or record.result.parameters is None):
        raise InputError(f"{run.name}: its result.json is missing or damaged")
    return record


def _refuse_mixture(
    runs: Sequence[RunDir], specs: Sequence[ExperimentSpec], records: Sequence[Record]
) -> None:
    metas = [run.read("meta.json") for run in runs]
    results = [record.result for record in records if record.state == "finished"]
    for run, spec, record, meta in zip(runs, specs, records, metas, strict=True):
        fields = [key.replace("_", " ") for key in SHARED if meta.get(key) != metas[0].get(key)]
        differing = differences(specs[0], spec)
        if teacher_run(spec) != teacher_run(specs[0]):  # each seed has its own
            differing.pop(TEACHER_WEIGHTS, None)
        fields += [name for name in differing if name != "seed"]
        arithmetic = ("precision", "kernels") if record.result in results else ()
        fields += [k for k in arithmetic if getattr(record.result, k) != getattr(results[0], k)]
        if fields:
            names = ", ".join(fields)
            raise ConfigError(
                f"{run.name} and {runs[0].name} differ in more than the seed: {names}"
            )
    if len({spec.seed for spec in specs}) < len(specs):
        raise ConfigError("two of these runs have the same seed; name one run per seed")


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
