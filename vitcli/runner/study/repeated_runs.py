"""Finished runs of one experiment with different seeds, as the document of a study with one row."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from vitcli.core.spec import ExperimentSpec
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
from vitcli.runner.run.folder import RunDir
from vitcli.runner.run.predictions import PerImage, read_per_image
from vitcli.runner.run.record import RunRecord, read_record, refuse_unreadable
from vitcli.runner.study.collect import study_result
from vitcli.runner.study.result import StudyResult
from vitcli.runner.study.states import kept_numbers
from vitcli.runner.study.table import to_json
from vitcli.runner.text import portable, portable_fields


def collect_runs(runs: Sequence[RunDir]) -> StudyResult:
    """Return one document for runs that differ in their seeds only."""
    records = sorted(map(_read_finished, runs), key=lambda record: record.seed)
    _refuse_mixture(records)
    first = records[0]
    spec = first.spec
    if all(record.state == "diverged" for record in records):
        raise InputError("none of these runs has a result: all of them diverged")
    return study_result(
        {"baseline": records},
        name=str(first.experiment),
        command=training_command(first, [record.seed for record in records]),
        threads=first.session.threads or 1,
        data=str(portable(spec.data.name)),
        epochs=spec.train.epochs,
        num_comparisons=0,
        where=first.name,
        base_config=portable_fields(changed_fields(spec.replace(seed=0))),
        task=spec.task.name,
    )


def _read_finished(run: RunDir) -> RunRecord:
    """Return the record of a run that has ended and has every number that a document needs."""
    refuse_unreadable(run)
    record = read_record(run)
    if record.problems:
        raise InputError(f"{run.name}: {record.problems[0]}")
    if not record.has_result:
        raise InputError(
            f"{run.name} is not finished ({record.state}); finish it:"
            f" {run.command('train --resume')}"
        )
    is_whole = record.state == "diverged" or None not in (record.test_score, record.parameters)
    if not (is_whole and record.experiment and record.data_hash):
        raise InputError(f"{run.name}: its meta.json or result.json lacks what a document needs")
    return record.changed(
        config_hash=config_hash(record.spec), images=_images(record), result=kept_numbers(record)
    )


def _images(record: RunRecord) -> PerImage | None:
    try:
        return read_per_image(record.folder.path / "predictions.npz", record.task)
    except (OSError, ValueError):
        return None


def _refuse_mixture(records: Sequence[RunRecord]) -> None:
    first = records[0]
    arithmetic = [record for record in records if record.state == "finished"]
    for record in records:
        others = differences(first.spec, record.spec)
        if teacher_run(record.spec) != teacher_run(first.spec):  # each seed has its own
            others.pop(TEACHER_WEIGHTS, None)
        is_other = {
            "experiment": record.experiment != first.experiment,
            "data hash": record.data_hash != first.data_hash,
            **{
                name: getattr(record.session, name) != getattr(first.session, name)
                for name in ("commit", "hardware", "torch")
            },
            **{name: name != "seed" for name in others},
            **{
                name: record in arithmetic
                and record.result.get(name) != arithmetic[0].result.get(name)
                for name in ("precision", "kernels")
            },
        }
        if fields := [name for name, differs in is_other.items() if differs]:
            raise ConfigError(
                f"{record.name} and {first.name} differ in more than the seed: {', '.join(fields)}"
            )
    if len({record.seed for record in records}) < len(records):
        raise ConfigError("two of these runs have the same seed; name one run per seed")


def training_command(record: RunRecord, seeds: Sequence[int]) -> str:
    """Return the command that trains these runs again, whatever the user typed for them."""
    name, spec = str(record.experiment), record.spec
    try:
        find_experiment(name)
    except ConfigError as error:
        raise ConfigError(
            f"no command can repeat these runs: no experiment is called {name!r};"
            " put its file into experiments/"
        ) from error
    words = ["vitcli", "train", name]
    asked = without_data(spec, load_experiment(name).spec, str(record.meta.get("config_hash")))
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
