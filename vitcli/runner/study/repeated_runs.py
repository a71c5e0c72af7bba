"""Finished runs of one experiment with different seeds, as the document of a study with one row."""

import shlex
from collections.abc import Sequence

from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.evaluate.teacher import teacher_run
from vitcli.runner.experiment.config import config_hash, find_experiment, load_experiment
from vitcli.runner.experiment.diff import TEACHER_WEIGHTS, differences, with_data_defaults
from vitcli.runner.experiment.yaml_text import format_value
from vitcli.runner.run.folder import RunDir
from vitcli.runner.run.record import RunRecord, read_record, refuse_unreadable
from vitcli.runner.study.collect import study_result
from vitcli.runner.study.result import StudyResult
from vitcli.runner.study.states import kept_numbers
from vitcli.runner.text import portable


def collect_runs(runs: Sequence[RunDir]) -> StudyResult:
    records = sorted(map(_read_finished, runs), key=lambda record: record.seed)
    if all(record.state == "diverged" for record in records):
        raise InputError("none of these runs has a result: all of them diverged")
    _refuse_mixture(records)
    first = records[0]
    return study_result(
        {"baseline": records},
        spec=first.spec,
        name=str(first.experiment),
        command=training_command(first, [record.seed for record in records]),
        threads=first.session.threads or 1,
        num_comparisons=0,
        where=first.name,
    )


def _read_finished(run: RunDir) -> RunRecord:
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
    images = None
    try:
        images = record.read_images()
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        raise InputError(f"{run.path}/predictions.npz: {error}") from error
    result = kept_numbers(record)
    return record.changed(config_hash=config_hash(record.spec), images=images, result=result)


def _refuse_mixture(records: Sequence[RunRecord]) -> None:
    first = records[0]
    finished = next(record for record in records if record.state == "finished")
    for record in records:
        pairs = {
            "experiment": (first.experiment, record.experiment),
            "data hash": (first.data_hash, record.data_hash),
            "commit": (first.session.commit, record.session.commit),
            "hardware": (first.session.hardware, record.session.hardware),
            "torch": (first.session.torch, record.session.torch),
            **differences(first.spec, record.spec),
        }
        if record.state == "finished":
            pairs["precision"] = (finished.precision, record.precision)
            pairs["kernels"] = (finished.kernels, record.kernels)
        if teacher_run(record.spec) != teacher_run(first.spec):  # each seed has its own
            pairs.pop(TEACHER_WEIGHTS, None)
        fields = [name for name, (one, other) in pairs.items() if one != other and name != "seed"]
        if fields:
            raise ConfigError(
                f"{record.name} and {first.name} differ in more than the seed: {', '.join(fields)}"
            )
    if len({record.seed for record in records}) < len(records):
        raise ConfigError("two of these runs have the same seed; name one run per seed")


def training_command(record: RunRecord, seeds: Sequence[int]) -> str:
    name, spec = str(record.experiment), record.spec
    try:
        find_experiment(name)
    except ConfigError as error:
        raise ConfigError(
            f"no command can repeat these runs: no experiment is called {name!r};"
            " put its file into experiments/"
        ) from error
    words = ["vitcli", "train", name]
    file = with_data_defaults(load_experiment(name).spec, spec, record.meta)
    for field, (_, used) in differences(file, spec).items():
        if field not in ("seed", "code", TEACHER_WEIGHTS):
            words += ["-s", f"{field}={format_value(portable(used))}"]
    words += [
        word for file in spec.code if file.endswith((".py", "/")) for word in ("--code", file)
    ]
    if len(seeds) == 1:
        return shlex.join([*words, "--seed", str(seeds[0])])
    numbers = " ".join(map(str, seeds))
    return f"for seed in {numbers}; do {shlex.join(words)} --seed $seed; done"
