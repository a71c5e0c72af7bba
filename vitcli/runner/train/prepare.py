"""The beginning of a training: all that follows from the request, before the run folder changes.

Whatever can be refused is refused here. ``--dry-run`` prints the plan.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from vitcli.core import ranks
from vitcli.core.data.source import DataSet
from vitcli.core.spec import FAMILIES, GENERATED, ExperimentSpec
from vitcli.core.train.training import Training
from vitcli.runner.data.find import own_path, refuse_unused_folder
from vitcli.runner.data.load import load_data
from vitcli.runner.errors import ConfigError, InputError, UserError
from vitcli.runner.evaluate.teacher import other_weights, with_known_teacher
from vitcli.runner.evaluate.weights import first_file
from vitcli.runner.experiment import own_code
from vitcli.runner.experiment.build import without_memory
from vitcli.runner.experiment.config import (
    Experiment,
    config_hash,
    config_text,
    load_experiment,
)
from vitcli.runner.experiment.diff import Change, differences, with_data_defaults
from vitcli.runner.experiment.resolve import fit_pictures, resize_setting, resolve, shrink_batch
from vitcli.runner.experiment.torch_state import unchanged
from vitcli.runner.experiment.yaml_text import Document
from vitcli.runner.machine.device import pick_device
from vitcli.runner.machine.resources import SMALLER, resource_errors
from vitcli.runner.run.checkpoint import Checkpoint, resumable_checkpoint
from vitcli.runner.run.folder import CONFIG, RUNS, RunDir, default_path, find_run
from vitcli.runner.run.listing import refuse_foreign_files
from vitcli.runner.run.record import RunRecord, describe_other_images, headline_key, read_record
from vitcli.runner.run.split import Sides, learned_sides, read_sides, split_json
from vitcli.runner.text import Listener, ignore_message, listed, quantity
from vitcli.runner.train import exactness
from vitcli.runner.train.build import build_training, compile_training, settings
from vitcli.runner.train.contract import check_build
from vitcli.runner.train.events import Event
from vitcli.runner.train.flops import count_operations
from vitcli.runner.train.initial import initial_module, refuse_source, sources
from vitcli.runner.train.ranks import (
    describe_parts,
    device_of_rank,
    refuse_other_ranks,
    refuse_parts,
)


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
    launcher: str = ""
    """Words before a command to continue the run, such as those of torchrun."""
    track: tuple[str, ...] = ()
    """Names of trackers, which show the run while it trains."""
    on_event: Callable[[Event], None] = ignore_message
    on_message: Listener = ignore_message
    load: Callable[..., DataSet] = load_data
    """Reads the data set."""

    def reader(self, spec: ExperimentSpec) -> Callable[..., DataSet]:
        where = {"data_dir": self.data_dir, "offline": self.offline}
        return partial(self.load, **where, extras=spec.task.extras, seed=spec.seed)

    def resume_command(self, run: RunDir) -> str:
        text = run.command("train --resume", self.data_dir, self.device)
        text += "".join(f" --track {name}" for name in self.track)
        return f"{self.launcher} {text}" if self.launcher else text


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A training that could begin now."""

    experiment: Experiment
    """The experiment as it was asked for, and the teacher that it named."""
    spec: ExperimentSpec
    """The experiment, with every field that follows from the data set."""
    request: Request
    run: RunDir
    data: DataSet
    training: Training
    measures_test: bool = True
    """Whether ``data.test`` holds test images; in a search it does not."""
    first: RunDir | Path | None = None
    """The run, or the file of published weights, that a new training starts from."""
    split: bytes | None = None
    """The content of split.json; None without own pictures."""
    before: RunRecord | None = None
    """What the run folder says already; None if the run is a new one."""
    checkpoint: Checkpoint | None = None
    """The checkpoint that the training continues from."""
    inexact: dict[str, Change] = field(default_factory=dict)
    """Why the bits will differ from those of an uninterrupted run: name -> (then, now)."""
    pretraining: Experiment | None = None
    """The pre-training that comes first; None if there is none, or if its run is finished."""


def resume_experiment(
    name: str, changes: Mapping[str, Any] | None = None, options: Mapping[str, str] | None = None
) -> tuple[Experiment, Path]:
    """Return the experiment in a run folder, with changes, and the folder to continue.

    ``options`` maps a changed field to the option that set it, if that is not ``--set``.
    """
    run = find_run(name)
    run.require_own()
    record = read_record(run)
    exactness.refuse_damage(record)
    spec = load_experiment(str(run.path / "config.yaml"), changes, options).spec
    label = record.experiment or run.path.name
    return Experiment(label, spec, run.path / "config.yaml"), run.path


def prepare(experiment: Experiment, request: Request, *, replay: int | None = None) -> Plan:
    """Return the plan of a training. Nothing is written but the cache, and whatever can be
    refused is refused.

    The plan continues from the newest checkpoint, or from that before the step ``replay``.
    """
    run = chosen_folder(experiment, request)
    experiment = with_run_of_teacher(experiment, request, run)
    device = pick_device(device_of_rank(request.device))
    before = stored_run(experiment, request, run)
    start = partial(resumable_checkpoint, run.checkpoints, request.on_message, before=replay)
    checkpoint = start() if before else None
    first = None if checkpoint else first_run(experiment, request, before)
    part = pretraining_of(experiment) if first and experiment.spec.pretrain else None
    is_waiting = isinstance(first, RunDir) and part and read_record(first).status != "finished"
    if request.rerun:
        refuse_source(run, experiment.spec, first)
    without_test = request.without_test or bool(before and before.meta.get("without_test"))
    sides = kept_sides(experiment, before, first)
    spec, data = read_images(experiment, request, sides, before)
    runs = sources(spec, None if is_waiting else first)
    learned = {
        content for run in runs for content, side in learned_sides(run).items() if side == "train"
    }
    split = split_json(data, learned, sides) if data.contents else None
    if without_test and data.val is None:
        raise ConfigError("data.val_split is 0; a training without test images measures that split")
    if without_test and data.val:
        data = replace(data, test=data.val)  # so not even a picture can show a test image
    kept = before.spec.train.batch_size if before else None
    count = len(data.train)
    spec = shrink_batch(experiment, resolve(spec, data), count, request.on_message, kept=kept)
    if before:
        restore = "restore" if data.name in GENERATED else "point --data-dir at"
        advice = f"{restore} the images of the training, or start over: {run.rerun_command}"
        refuse_other_images(before, data, advice)
    else:
        refuse_leaks(spec, data)
    if part and isinstance(first, RunDir) and not is_waiting:
        refuse_other_pretraining(part, read_record(first), data)
    if ranks.size() > 1:
        refuse_parts(spec, ranks.size())
        request.on_message(describe_parts(spec, ranks.size()))
    module = initial_module(spec, data, None if is_waiting else first, request.on_message)
    # A run keeps the kernels that it began with, because kernels round differently.
    kernels = str(checkpoint.state.get("kernels", "torch")) if checkpoint else None
    with resource_errors(SMALLER), without_memory(spec):
        training = build_training(
            spec, module, data.to(device), request.on_message, kernels=kernels
        )
        if not is_waiting:
            compile_training(training, request.on_message)
    if spec.code:  # its options may be longer than what is read
        Document(config_text(spec), f"{run.path / CONFIG}, as it would be written")
        try_own_code(training, is_new=not checkpoint)
    if ranks.size() > 1:
        facts = {"configuration": config_hash(spec), "data": data.data_hash}
        facts["checkpoint"] = str(checkpoint.step) if checkpoint else "none"
        facts |= {"precision": training.precision, "kernels": training.kernels}
        refuse_other_ranks(facts | exactness.numerical_environment(training))
        ranks.check_weights(module.state_dict())
    plan = Plan(
        experiment=experiment,
        spec=spec,
        request=request,
        run=run,
        data=training.data,
        training=training,
        measures_test=not without_test,
        first=first,
        split=split,
        before=before,
        checkpoint=checkpoint,
        pretraining=part if is_waiting else None,
    )
    return replace(plan, inexact=refuse_other_bits(plan, replay=replay)) if before else plan


def chosen_folder(experiment: Experiment, request: Request) -> RunDir:
    spec = experiment.spec
    run = RunDir(request.output or default_path(experiment.name, spec, experiment.changed))
    continues = request.resume and run.exists
    refuse_unused_folder(
        spec.data.name, request.data_dir, may_choose=not continues, may_move=continues
    )
    run.refuse_links()
    if run.path.is_dir():
        refuse_foreign_files(run, rerun=request.rerun)
        own_code.refuse_persons_files(spec, run.path, lambda: [read_record(run).config])
    return run


def with_run_of_teacher(experiment: Experiment, request: Request, run: RunDir) -> Experiment:
    spec = experiment.spec
    if not (spec.task.has_teacher or spec.pretrain):
        return experiment
    return replace(experiment, spec=with_known_teacher(spec, None if request.rerun else run))


def finished_run(experiment: Experiment, request: Request) -> RunRecord | None:
    """Return the run if nothing is left to train; refuse a request that it cannot continue."""
    pick_device(device_of_rank(request.device))
    run = chosen_folder(experiment, request)
    if request.rerun or not run.exists:
        return None
    experiment = with_run_of_teacher(experiment, request, run)
    record = stored_run(experiment, request, run)
    if record is None or not is_finished(record) or changes_of(experiment.spec, record):
        return None
    if own_path(experiment.spec.data.name):
        with suppress(UserError):  # pictures that are gone are no other ones
            data = read_images(experiment, request, kept_sides(experiment, record, None), record)[1]
            if problem := describe_other_images(record.data_hash, data):
                request.on_message(f"note: {record.name} was trained on {problem}")
    return record


def stored_run(experiment: Experiment, request: Request, run: RunDir) -> RunRecord | None:
    if request.rerun or not run.exists:
        return None
    run.refuse_use()
    record = read_record(run)
    exactness.refuse_damage(record)
    if record.imported:
        raise ConfigError(
            f"{run.path} holds imported weights; train from them: --init {run.name} --name NAME"
        )
    if differing := changes_of(experiment.spec, record):
        if not (request.resume and request.allow_inexact):
            raise ConfigError(
                f"{run.path} holds a run with another configuration ({', '.join(differing)});"
                " choose another --name or -o, or replace it with --rerun"
            )
        if fixed := ", ".join(name for name in differing if not exactness.may_change(name)):
            raise ConfigError(
                f"{run.path} cannot continue with another {fixed}; train a new run with --name"
            )
        return record
    if is_finished(record):
        exactness.refuse_damage(record, writes=False)
        if not request.resume and (reason := other_weights(record, record.spec)):
            raise ConfigError(
                f"{run.path} holds a run that was {reason}; choose another --name or -o, or replace"
                " it with --rerun"
            )
        epochs = record.spec.train.epochs
        refuse_passed(run, request, epochs, epochs)
        return record
    if not request.resume:
        raise ConfigError(
            f"{run.path} holds an unfinished run ({record.state} at step {record.step});"
            f" continue it: {request.resume_command(run)}   start over: --rerun"
        )
    return record


def changes_of(spec: ExperimentSpec, record: RunRecord) -> dict[str, Change]:
    """Return the fields of an experiment that are not those of a run: name -> (then, now)."""
    stored = record.spec
    return differences(stored, with_data_defaults(spec, stored, record.meta))


def is_finished(record: RunRecord) -> bool:
    key = headline_key(record.result, record.headline.name)
    return record.status == "finished" and {key, "train_seconds"} <= record.result.keys()


def refuse_passed(run: RunDir, request: Request, done: int, epochs: int) -> None:
    """Refuse to stop a run of ``epochs`` epochs after an epoch that is among the ``done`` ones."""
    number = request.stop_after
    if number and number <= done and number < epochs:
        raise ConfigError(
            f"--stop-after {number}: {run.name} already has {done} of {quantity(epochs, 'epoch')};"
            f" type a larger number, or measure it as it is: {run.command('eval')}"
        )


def refuse_other_bits(plan: Plan, *, replay: int | None) -> dict[str, Change]:
    """Return why a continued or replayed training gives other bits; refuse that unless allowed."""
    before, checkpoint, training = plan.before, plan.checkpoint, plan.training
    inexact = exactness.edited_configuration(before) if before else {}
    if before and checkpoint:
        done = checkpoint.step // training.steps_per_epoch
        refuse_passed(plan.run, plan.request, done, plan.spec.train.epochs)
        inexact |= exactness.changes_since(plan.run, checkpoint, training)
        changed = differences(before.spec, plan.spec)
        if changed and checkpoint.step == training.num_steps:
            raise ConfigError(f"{plan.run.name} has no steps left; add epochs: -s train.epochs=N")
        inexact |= changed
    elif before and replay:  # a training that starts over would be exact, but this one repeats
        begun = {name: before.meta[name] for name in exactness.BEGUN_IN if name in before.meta}
        inexact |= exactness.changed_environment(begun, training)
        inexact |= differences(before.spec, plan.spec)
    if not plan.request.allow_inexact:
        exactness.refuse_inexact(plan.run, inexact)
    if checkpoint:
        inexact |= exactness.lost_state(checkpoint, training)
    return inexact


# The images


def try_own_code(training: Training, *, is_new: bool) -> None:
    """Refuse own code that builds other weights each time, or cannot be counted."""
    spec = training.spec
    if is_new:  # the weights of another one are in its checkpoint
        check_build(spec)
    with settings(training), unchanged(", ".join(sorted(spec.code))), without_memory(spec):
        count_operations(spec, next(training.batches(0)))


def read_images(
    experiment: Experiment, request: Request, kept: Sides, before: RunRecord | None
) -> tuple[ExperimentSpec, DataSet]:
    """Return the images of a training, and the spec with the size that they are read at.

    Own pictures of one size that the patches do not divide are read smaller. In a study they are
    not, because its variants could then see different images.
    """
    spec = experiment.spec
    read = partial(request.reader(spec), **({"kept": kept} if kept else {}))
    data = read(spec.data, on_message=request.on_message)
    if before and describe_other_images(before.data_hash, data):  # an earlier version divided them
        read = partial(read, **({"kept": own} if (own := read_sides(before.folder)) else {}))
        data = read(spec.data)
    if experiment.variant is not None:
        return spec, data
    fitted = fit_pictures(spec, data.img_size)
    if fitted == spec or fitted.data.resize is None:
        return spec, data
    (height, width), size = data.img_size, fitted.data.resize
    request.on_message(
        f"note: patches of {spec.model.patch_side} pixels do not divide"
        f" {height}x{width}; the pictures are resized to {size[0]}x{size[1]}"
        f" ({resize_setting(size)})"
    )
    return fitted, read(fitted.data)


def kept_sides(
    experiment: Experiment, before: RunRecord | None, first: RunDir | Path | None
) -> Sides:
    """Return the sides that own pictures keep: those that the initial weights learned from.

    A training that has begun keeps what it kept. Folds, and the trials of a study, which must all
    see the same images, keep none.
    """
    if before and before.data_hash:
        return read_sides(before.folder, "kept") or {}
    spec = experiment.spec
    is_own = own_path(spec.data.name) and not (experiment.variant or spec.data.folds)
    if not is_own or spec.pretrain or not isinstance(first, RunDir):
        return {}
    return learned_sides(first)


def refuse_leaks(spec: ExperimentSpec, data: DataSet) -> None:
    if data.leaks and not spec.data.allow_leaks:
        raise InputError(
            f"{quantity(len(data.leaks), 'held-out picture')} found in another split, too, or in"
            " one of its groups, so the accuracy would be too high:"
            f"\n{listed(data.leaks)}\n"
            "Remove them from one side, or train in spite of them: --allow-leaks, in a study"
            " -s data.allow_leaks=true, in Python load_data(..., allow_leaks=True)"
        )


def refuse_other_images(record: RunRecord, data: DataSet, advice: str) -> None:
    if problem := describe_other_images(record.data_hash, data):
        raise InputError(f"{record.path} was trained on {problem}; {advice}")


def refuse_other_pretraining(part: Experiment, record: RunRecord, data: DataSet) -> None:
    again = f"pre-train again: {record.folder.command('runs rm')}"
    refuse_other_images(record, data, again)
    if differing := changes_of(part.spec, record):
        raise InputError(
            f"{record.path} is no pre-training of this experiment ({', '.join(differing)} differ);"
            f" {again}"
        )


# What a training starts from


def first_run(
    experiment: Experiment, request: Request, before: RunRecord | None
) -> RunDir | Path | None:
    """Return the run, or the weights file, that a new training starts from, if any.

    ``before`` is a training that has begun already; it names its pre-training. The configuration
    that a pre-training stored has more fields, so it leads to another name.
    """
    if experiment.spec.pretrain:
        part = pretraining_of(experiment)
        known = before.pretrained.get("run") if before and before.pretrained else None
        if known:
            with suppress(UserError):
                return find_run(str(known))
        # All experiments with the same pre-training share its run.
        return RunDir(RUNS / "pretrained" / part.name / f"seed{part.spec.seed}")
    spec = experiment.spec
    if FAMILIES[spec.model.family].weights and (
        file := first_file(spec, request.offline, request.on_message)
    ):
        return file
    return request.first or (find_run(spec.train.init) if spec.train.init else None)


def pretraining_of(experiment: Experiment) -> Experiment:
    spec = experiment.spec.pretraining
    assert spec
    if experiment.spec.code and (code := own_code.code_of(spec)):
        spec = spec.replace(code=code)
    name = f"{spec.task.name}-{config_hash(spec)[:8]}"
    return Experiment(name, spec, experiment.path, variant=experiment.variant)
