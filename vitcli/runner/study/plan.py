"""The work of a study: the trials still to train."""

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vitcli.core.spec import DataSpec, ExperimentSpec
from vitcli.runner.engines.drivers import PLAN, rerun_before
from vitcli.runner.errors import ConfigError, UserError
from vitcli.runner.evaluate.teacher import with_teacher
from vitcli.runner.experiment import own_code
from vitcli.runner.experiment.resolve import fit_to_data
from vitcli.runner.experiment.yaml_text import value_at
from vitcli.runner.files import readable_json
from vitcli.runner.limits import allowed_cores
from vitcli.runner.run.folder import RunDir, find_run, list_runs
from vitcli.runner.run.record import RunRecord, read_record
from vitcli.runner.study.collect import recorded_plan, trained_seeds
from vitcli.runner.study.definition import Study, Trial
from vitcli.runner.study.result import Plan
from vitcli.runner.study.saved import SavedTrials
from vitcli.runner.study.states import trial_states
from vitcli.runner.text import printable


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to run a study. No option changes what is trained."""

    jobs: int | None = None
    pin: bool = True
    device: str = "auto"
    data_dir: Path | None = None
    offline: bool = False
    track: tuple[str, ...] = ()
    fail_fast: bool = False
    budget: float | None = None
    """Seconds after which running trials are stopped; the next call continues them."""
    command: str = ""

    def request(self) -> dict[str, Any]:
        return {
            "device": self.device,
            "data_dir": str(self.data_dir.resolve()) if self.data_dir else None,
            "offline": self.offline,
            "track": list(self.track),
            "command": self.command,
        }


@dataclass(frozen=True, kw_only=True)
class StudyWork:
    study: Study
    root: Path
    names: tuple[str, ...]
    states: dict[str, RunRecord]
    saved: SavedTrials | None
    """Saved trials, used where the study's folder has no result."""
    trials: list[Trial]
    replaced: frozenset[str]
    """Folders of trials whose results are deleted before training."""
    rerun: tuple[str, ...]
    """Variants whose saved trials are not used, in this call or since an earlier one."""
    parameters: dict[str, int]
    planned: Plan


def plan_study(
    study: Study,
    root: Path,
    only: tuple[str, ...],
    *,
    rerun: Collection[str] = (),
    saved: SavedTrials | None = None,
) -> StudyWork:
    """Return the work of the variants ``only``; those of ``rerun`` train again."""
    from vitcli.runner.study.page import refuse_foreign_files  # scipy takes a moment

    refuse_foreign_files(root)
    if study.data and not rerun:
        _refuse_other_data(study, root)
    states = trial_states(study, root, only, saved, ignore=rerun)
    refuse_persons_files(root, study.trials())
    requested = study.trials(only)
    again = [t.folder for t in requested if t.variant in rerun]
    replaced = {folder for folder in again if states[folder].state != "missing"}
    trials = [t for t in requested if t.folder in replaced or not states[t.folder].has_result]
    for trial in trials:
        with_teacher(trial.spec)
        _refuse_unknown_start(trial)
    known = {t.variant: count for t in requested if (count := states[t.folder].parameters)}
    parameters = model_sizes(study) if trials else known
    return StudyWork(
        study=study,
        root=root,
        names=only,
        states=states,
        saved=saved,
        trials=trials,
        replaced=frozenset(replaced),
        rerun=tuple(sorted({*rerun, *rerun_before(root)})),
        parameters=parameters,
        planned=recorded_plan(study, root, saved),
    )


def refuse_persons_files(root: Path, trials: Sequence[Trial]) -> None:
    """Refuse a folder of trials if copies of own code would replace files of a person."""
    RunDir(root).refuse_links()

    def configs() -> list[Any]:
        entries = readable_json(root / PLAN).get("trials", {}).values()
        planned = [value_at(entry, "config") for entry in entries]
        return [*planned, *(read_record(run).config for run in list_runs(root))]  # of older plans

    for spec in {trial.variant: trial.spec for trial in trials}.values():
        own_code.refuse_persons_files(spec, root, configs)


def _refuse_other_data(study: Study, root: Path) -> None:
    trials = readable_json(root / PLAN).get("trials", {}).values()
    others = {value_at(trial, "config.data.name") for trial in trials} - {study.data, None}
    if others and list_runs(root):
        raise ConfigError(
            f"{root} holds the trials of {printable(min(others))}; choose another folder with -o"
        )


def _refuse_unknown_start(trial: Trial) -> None:
    from vitcli.runner.evaluate.weights import first_file
    from vitcli.runner.text import ignore_message

    init = trial.spec.train.init
    if init and not first_file(trial.spec, offline=True, on_message=ignore_message):
        try:
            find_run(init)
        except UserError as error:
            raise type(error)(f"{trial.folder}: train.init: {error}") from error


def worker_count(threads: int, options: Options) -> int:
    """Return the number of workers: ``-j``, or 1 on a GPU, or CPU cores / threads per trial."""
    from vitcli.runner.machine.device import pick_device

    if options.jobs:
        return options.jobs
    if pick_device(options.device).type != "cpu":
        return 1
    return max(1, len(allowed_cores()) // threads)


def current_states(work: StudyWork) -> dict[str, RunRecord]:
    return trial_states(work.study, work.root, work.names, work.saved, ignore=work.rerun)


def kept_data_hash(work: StudyWork) -> str | None:
    """Return the hash of the images of the results that stay, which all trials must have."""
    seeds = {*work.study.seeds, *map(int, trained_seeds(work.root))}
    every = trial_states(replace(work.study, seeds=tuple(sorted(seeds))), work.root)
    kept = [record for f, record in (every | work.states).items() if f not in work.replaced]
    return next((record.data_hash for record in kept if record.has_result), None)


def saved_for_training(folder: Path, options: Options) -> SavedTrials:
    @functools.cache
    def data_hash(spec: DataSpec) -> str | None:
        from vitcli.runner.data.load import load_data

        try:
            data = load_data(spec, data_dir=options.data_dir, offline=options.offline, seed=0)
            return data.data_hash  # the same for each seed
        except UserError:  # a training reports this error if it needs the images
            return None

    def precision(spec: ExperimentSpec) -> str:
        if spec.train.precision in ("fp32", "bf16"):  # every device has them: torch is not asked
            return spec.train.precision
        from vitcli.runner.machine.device import name_precision, pick_device

        return name_precision(spec.train.precision, pick_device(options.device))

    return SavedTrials(folder, precision, data_hash)


def states_without_result(states: Mapping[str, RunRecord]) -> dict[str, RunRecord]:
    return {name: record for name, record in states.items() if not record.has_result}


def count_states(states: Mapping[str, RunRecord]) -> str:
    names = [state.state for state in states.values()]
    return ", ".join(f"{names.count(name)} {name}" for name in dict.fromkeys(sorted(names)))


def name_trials(reasons: Mapping[str, str]) -> dict[str, str]:
    """Return text -> the trials with this text, such as ``no-ffn/seed0, seed1; full/seed0``."""
    found: dict[str, dict[str, list[str]]] = {}
    for folder, reason in reasons.items():
        parent, _, seed = folder.rpartition("/")
        found.setdefault(reason, {}).setdefault(parent, []).append(seed)
    return {
        reason: "; ".join(f"{parent}/{', '.join(seeds)}" for parent, seeds in parents.items())
        for reason, parents in found.items()
    }


def explain_states(states: Mapping[str, RunRecord]) -> list[str]:
    """Return a line for each state with a reason, with all of its trials."""
    texts = {f: f"{state.state} ({state.reason})" for f, state in states.items() if state.reason}
    return [f"{trials}: {text}" for text, trials in name_trials(texts).items()]


def model_size(spec: ExperimentSpec) -> int:
    from vitcli.core.inspect.cost import count_parameters
    from vitcli.runner.data.load import describe_data
    from vitcli.runner.experiment.build import abstract_module

    return count_parameters(abstract_module(fit_to_data(spec, describe_data(spec.data))))


def model_sizes(study: Study) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for variant in study.variants:
        try:
            for _, spec in variant.settings:
                sizes[variant.name] = model_size(spec)
        except ConfigError as error:
            raise ConfigError(f"{study.path}: variant {variant.name!r}: {error}") from error
    return sizes
