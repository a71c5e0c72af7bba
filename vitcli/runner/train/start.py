"""The start of a training: refuse the request, prepare a new run, or continue a run."""

import dataclasses
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from vitcli.core.data.source import DataSet
from vitcli.core.spec import ExperimentSpec
from vitcli.runner.data.find import refuse_unused_folder
from vitcli.runner.data.load import load_data
from vitcli.runner.errors import ConfigError, InputError, InUseError, StoppedError, UserError
from vitcli.runner.evaluate.teacher import with_known_teacher
from vitcli.runner.experiment import own_code
from vitcli.runner.experiment.config import Experiment, config_hash, load_experiment
from vitcli.runner.experiment.diff import adjustments, differences, with_data_defaults
from vitcli.runner.machine.arithmetic import chosen_kernels
from vitcli.runner.machine.device import environment, pick_device
from vitcli.runner.machine.resources import SMALLER, resource_errors
from vitcli.runner.run.checkpoint import Checkpoint, resumable_checkpoint
from vitcli.runner.run.folder import REPLACED, RUNS, RunDir, default_path, find_run
from vitcli.runner.run.listing import delete_run_files, make_run_folder, remove_empty_folders
from vitcli.runner.run.record import NO_TEST, RunRecord, headline_key, read_record, run_metadata
from vitcli.runner.text import ignore_message, quantity
from vitcli.runner.trackers import live_tracker
from vitcli.runner.train.build import BuiltTraining
from vitcli.runner.train.events import Event
from vitcli.runner.train.exactness import (
    configuration_record,
    edited_configuration,
    mark_inexact,
    may_change,
    refuse_damage,
    refuse_inexact,
)
from vitcli.runner.train.finish import describe_sources, finish, finish_early, prepare_end
from vitcli.runner.train.images import refuse_other_images, resolve_images
from vitcli.runner.train.initial import initial_module, refuse_source
from vitcli.runner.train.ranks import ONE_PROCESS, Processes
from vitcli.runner.train.signals import StopFlag
from vitcli.runner.train.trainer import Trainer
from vitcli.runner.weights.timm_start import first_file

POLL_SECONDS = 1.0
"""Time between two looks at a pre-training that another process trains."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """How and where to train. No field changes what is trained."""

    device: str = "auto"
    data_dir: Path | None = None
    offline: bool = False
    output: Path | None = None
    resume: bool = False
    rerun: bool = False
    allow_inexact: bool = False
    """Continue a run even if the result is not bit-identical to an uninterrupted run; mark it."""
    without_test: bool = False
    """Measure validation images only, and give the training no test image. A search does so."""
    stop_after: int | None = None
    """Stop after this epoch, with the schedule of the whole training; None trains to the end."""
    first: RunDir | None = None
    """The run of ``train.init``; None searches it by its name."""
    command: str | None = None
    """The command for meta.json, if it is not the command line of this process."""
    processes: Processes = ONE_PROCESS
    """The processes of the training; this is rank 0."""
    track: tuple[str, ...] = ()
    """Names of trackers, which show the run while it trains."""
    on_event: Callable[[Event], None] = ignore_message
    on_message: Callable[[str], None] = ignore_message
    load: Callable[..., DataSet] = load_data
    """Reads the data set."""

    def reader(self, spec: ExperimentSpec) -> Callable[..., DataSet]:
        where = {"data_dir": self.data_dir, "offline": self.offline}
        return partial(self.load, **where, extras=spec.task.extras, seed=spec.seed)


@dataclass(frozen=True)
class FinishedTraining:
    """The record of a run, and whether the run was trained just now."""

    record: RunRecord
    trained: bool

    @property
    def run(self) -> RunDir:
        return self.record.folder

    @property
    def result(self) -> dict[str, Any]:
        """Final numbers; those reached so far if the training stopped before its end."""
        return self.record.result or self.record.reached

    @property
    def stopped(self) -> str:
        """Why the training stopped before its end; empty if it is finished."""
        return self.record.reason if self.record.reached else ""


def start(experiment: Experiment, request: Request) -> FinishedTraining:
    """Train an experiment to its end, or continue it."""
    run = chosen_folder(experiment, request)
    spec = with_known_teacher(experiment.spec, None if request.rerun else run)
    experiment = dataclasses.replace(experiment, spec=spec)
    device = pick_device(request.processes.device_name(request.device))
    make_run_folder(run, rerun=request.rerun)
    with run.lock(), ExitStack() as trackers:
        old = read_record(run) if run.exists and not request.rerun else None
        if old and is_already_finished(old, experiment.spec, request):
            return FinishedTraining(old, trained=False)
        watch = partial(request.processes.watch, run, resume_command(run, request))
        try:
            with resource_errors(), chosen_kernels(device, experiment.spec.train.deterministic):
                with watch():
                    trainer = prepare_trainer(experiment, request, run, old, device)
                track(trainer, request, trackers)
                # After the last step, a signal no longer stops the result.
                with StopFlag(again=request.processes.size == 1) as stop:
                    with watch(), resource_errors(SMALLER):
                        for _ in trainer.train(stop, request.stop_after):
                            pass
                    request.processes.part()
                    if trainer.step < trainer.training.num_steps and not trainer.stopped_at:
                        finish_early(trainer)
                    else:
                        finish(trainer)
                    return FinishedTraining(read_record(run, trainer.spec), trained=True)
        except UserError as error:
            if not run.exists and not isinstance(error, InUseError):
                remove_empty_folders(run.path)
            raise
        except BaseException as error:
            reason = own_code.locate_in_own_code(error)
            if not (reason or isinstance(error, Exception)):
                raise  # a signal
            if run.exists:
                run.set_status("failed", run.last_step(), reason or own_code.describe_error(error))
            else:
                remove_empty_folders(run.path)
            raise


def chosen_folder(experiment: Experiment, request: Request) -> RunDir:
    """Return the run folder of a training; refuse a ``--data-dir`` that it does not read."""
    spec = experiment.spec
    run = RunDir(request.output or default_path(experiment.name, spec, experiment.changed))
    continues = request.resume and run.exists
    refuse_unused_folder(
        spec.data.name, request.data_dir, may_choose=not continues, may_move=continues
    )
    return run


def track(trainer: Trainer, request: Request, trackers: ExitStack) -> None:
    for name in request.track:
        heard = trainer.on_event, trainer.on_message
        tracker = live_tracker(name, trainer.run, request.offline, *heard)
        trainer.on_event = trackers.enter_context(tracker)


def is_already_finished(record: RunRecord, spec: ExperimentSpec, request: Request) -> bool:
    """Return whether a run is finished; refuse a run that the request cannot continue."""
    run = record.folder
    refuse_damage(record)
    if record.imported:
        raise ConfigError(
            f"{run.path} holds imported weights; train from them: --init {run.name} --name NAME"
        )
    stored = record.spec
    if differing := differences(stored, with_data_defaults(spec, stored, record.meta)):
        if request.resume and request.allow_inexact:
            if all(map(may_change, differing)):
                return False
            fixed = ", ".join(name for name in differing if not may_change(name))
            raise ConfigError(
                f"{run.path} cannot continue with another {fixed}; train a new run with --name"
            )
        raise ConfigError(
            f"{run.path} holds a run with another configuration ({', '.join(differing)});"
            " choose another --name or -o, or replace it with --rerun"
        )
    if not request.allow_inexact:
        refuse_inexact(run.name, edited_configuration(record))
    key = headline_key(record.result, spec.task.row.headline.name)
    if record.status == "finished" and {key, "train_seconds"} <= record.result.keys():
        refuse_passed(run, request, stored.train.epochs, stored.train.epochs)
        return True
    if request.resume:
        return False
    raise ConfigError(
        f"{run.path} holds an unfinished run ({record.state} at step {record.step});"
        f" continue it: {resume_command(run, request)}   start over: --rerun"
    )


def refuse_passed(run: RunDir, request: Request, done: int, epochs: int) -> None:
    """Refuse to stop a run of ``epochs`` epochs after an epoch that is among the ``done`` ones."""
    number = request.stop_after
    if number and number <= done and number < epochs:
        raise ConfigError(
            f"--stop-after {number}: {run.name} already has {done} of {quantity(epochs, 'epoch')};"
            f" type a larger number, or measure it as it is: {run.command('eval')}"
        )


def resume_command(run: RunDir, request: Request) -> str:
    text = run.command("train --resume", request.data_dir, request.device)
    text += "".join(f" --track {name}" for name in request.track)
    return request.processes.command(text)


def prepare_trainer(
    experiment: Experiment,
    request: Request,
    run: RunDir,
    old: RunRecord | None,
    device: torch.device,
) -> Trainer:
    """Do everything that can fail; only then write the run folder. Return the trainer."""
    on_message = request.on_message
    checkpoint = resumable_checkpoint(run.checkpoints, on_message) if old else None
    meta = dict(old.meta) if old else {}
    first = None if checkpoint else first_run(experiment, request, old)
    if request.rerun:
        refuse_source(run, experiment.spec, first)
    without_test = request.without_test or bool(meta.get("without_test"))
    read = request.reader(experiment.spec)
    spec, data = resolve_images(experiment, read, on_message, old, without_test)
    if isinstance(first, RunDir) and spec.pretrain:
        advice = f"pre-train again: {first.command('runs rm')}"
        refuse_other_images(read_record(first), data, advice)
    module = initial_module(spec, data, first, on_message)
    # A run keeps the kernels that it began with, because kernels round differently.
    kernels = str(checkpoint.state.get("kernels", "torch")) if checkpoint else None
    command, processes = resume_command(run, request), request.processes
    facts = {"kernels": kernels, "data_hash": data.data_hash, "stop_after": request.stop_after}
    processes.send(spec, run, command, facts)
    with resource_errors(SMALLER):
        built = BuiltTraining(spec, module, data.to(device), on_message, kernels=kernels)
        built.compile()
    trainer = Trainer(
        built=built,
        run=run,
        resume_command=command,
        measures_test=not without_test,
        on_event=request.on_event,
        on_message=on_message,
    )
    if spec.code:  # else its imports would delay the first step
        prepare_end(trainer)
    processes.compare(trainer.facts())
    if old:
        restore(trainer, checkpoint, request, old, meta)
    processes.share(trainer.training)
    if request.rerun:
        delete_run_files(run.path)
    arithmetic = {name: getattr(built, name) for name in ("precision", "kernels", "compiled")}
    arithmetic |= {"ranks": processes.size} if processes.size > 1 else {}
    meta = run_metadata(experiment, data, environment(device) | arithmetic, meta, request.command)
    meta.pop(REPLACED, None)
    if old and differences(old.spec, with_data_defaults(spec, old.spec, meta)):
        meta["config_hash"] = config_hash(experiment.spec)  # another training than the one begun
    meta |= (
        configuration_record(spec)
        | {"parameters": built.parameters}
        | describe_sources(spec, first)
        | (adjustments(experiment.spec, spec) | (NO_TEST if without_test else {}))
    )
    if old:  # a mark in meta.json must be written before the configuration it is about
        run.set_meta(meta | {REPLACED: run.config_sha256()})
    run.create(spec)
    run.set_meta(meta)
    run.set_status("running", checkpoint.step if checkpoint else 0)
    if checkpoint:
        run.set_metrics(trainer.records)
    return trainer


def restore(
    trainer: Trainer,
    checkpoint: Checkpoint | None,
    request: Request,
    old: RunRecord,
    meta: dict[str, Any],
) -> None:
    """Restore a checkpoint, if there is one; mark the run in ``meta`` if its bits will differ."""
    run = trainer.run
    edited = edited_configuration(old)
    if checkpoint is None:
        mark_inexact(run, meta, 0, edited, trainer.on_message)
        return
    done = checkpoint.step // trainer.training.steps_per_epoch
    refuse_passed(run, request, done, trainer.spec.train.epochs)
    inexact = trainer.changes_since(checkpoint) | edited
    if request.allow_inexact:
        changed = differences(old.spec, trainer.spec)
        if changed and checkpoint.step == trainer.training.num_steps:
            raise ConfigError(f"{run.name} has no steps left; add epochs: -s train.epochs=N")
        inexact |= changed
    else:
        refuse_inexact(run.name, inexact)
    trainer.restore(checkpoint, old.metrics)
    mark_inexact(run, meta, checkpoint.step, inexact, trainer.on_message)


def first_run(
    experiment: Experiment, request: Request, old: RunRecord | None
) -> RunDir | Path | None:
    """Return the run, or the weights file of timm, that a new training starts from, if any.

    ``old`` is a training that has begun already; it names its pre-training.
    """
    if experiment.spec.pretrain:
        known = old.pretrained.get("run") if old and old.pretrained else None
        return pretrain(experiment, request, known)
    if file := first_file(experiment.spec, request.offline, request.on_message):
        return file
    init = experiment.spec.train.init
    return request.first or (find_run(init) if init else None)


def pretrain(experiment: Experiment, request: Request, known: str | None) -> RunDir:
    """Return the finished run of an experiment's pre-training; train or continue it if necessary.

    The run lies in runs/pretrained, so all experiments with the same pre-training share it. If
    another process trains it, wait. ``known`` is its name, if the training has begun already: the
    configuration that it stored has more fields, so it leads to another name.
    """
    spec = experiment.spec.pretraining
    assert spec is not None
    if experiment.spec.code and (code := own_code.code_of(spec)):
        spec = spec.replace(code=code)
    name = f"{spec.task.name}-{config_hash(spec)[:8]}"
    output = RUNS / "pretrained" / name / f"seed{spec.seed}"
    with suppress(UserError):
        output = find_run(known).path if known else output
    request = dataclasses.replace(request, output=output, resume=True, rerun=False, stop_after=None)
    part = Experiment(name, spec, experiment.path, variant=experiment.variant)
    epochs = quantity(spec.train.epochs, "epoch")
    request.on_message(f"pre-training with task {spec.task.name} for {epochs} in {output}")
    while True:
        try:
            return start(part, request).run
        except InUseError:
            time.sleep(POLL_SECONDS)
        except (ConfigError, InputError) as error:
            hint = f"this run is the pre-training; remove it: {RunDir(output).command('runs rm')}"
            raise type(error)(f"{error}\n{hint}") from error
        except StoppedError as error:
            raise StoppedError(
                "stopped in the pre-training; a checkpoint was saved. The same command continues",
                error.exit_code - 128,
            ) from error


def resume_experiment(
    name: str, changes: Mapping[str, Any] | None = None, options: Mapping[str, str] | None = None
) -> tuple[Experiment, Path]:
    """Return the experiment in a run folder, with changes, and the folder to continue.

    ``options`` maps a changed field to the option that set it, if that is not ``--set``.
    """
    run = find_run(name)
    run.require_own()
    spec = load_experiment(str(run.path / "config.yaml"), changes, options).spec
    label = read_record(run).experiment or run.path.name
    return Experiment(label, spec, run.path / "config.yaml"), run.path
