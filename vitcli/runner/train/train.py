"""A training from its request to its result, on one screen."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cache
from typing import Any

from vitcli.core import ranks
from vitcli.runner.errors import ConfigError, InputError, InUseError, StoppedError
from vitcli.runner.evaluate.teacher import teacher_run
from vitcli.runner.evaluate.weights import start_facts
from vitcli.runner.experiment.build import encoder_of, new_module
from vitcli.runner.experiment.config import Experiment, config_hash, config_text
from vitcli.runner.experiment.diff import RESIZED, SHRUNK_FROM
from vitcli.runner.experiment.torch_state import unchanged
from vitcli.runner.files import commit, make_output_folder, sha256
from vitcli.runner.machine.device import chosen_kernels, environment, pick_device
from vitcli.runner.machine.resources import SMALLER, resource_errors
from vitcli.runner.run.folder import SPLIT, RunDir, find_run
from vitcli.runner.run.listing import delete_run_files
from vitcli.runner.run.record import NO_TEST, RunRecord, read_record, run_metadata
from vitcli.runner.text import quantity
from vitcli.runner.train.exactness import describe_changes, edited_configuration
from vitcli.runner.train.finish import describe_cost_of, finish
from vitcli.runner.train.hooks import hooks_of
from vitcli.runner.train.prepare import Plan, Request, changes_of, finished_run, prepare
from vitcli.runner.train.ranks import device_of_rank
from vitcli.runner.train.trainer import Hook, Trainer

POLL_SECONDS = 1.0
"""Time between two looks at a pre-training that another process trains."""


def train(experiment: Experiment, request: Request, hooks: tuple[Hook, ...] = ()) -> RunRecord:
    """Train an experiment to its end, or continue it; return its run.

    ``hooks`` are told of the training beside those that the experiment and the request ask for.
    """
    if finished := finished_run(experiment, request):
        return finished
    device = pick_device(device_of_rank(request.device))
    with resource_errors(SMALLER), chosen_kernels(device, experiment.spec.train.deterministic):
        request = replace(request, on_message=cache(request.on_message))  # each note once
        plan = prepare(experiment, request)
        if plan.pretraining:
            pretrain(plan.pretraining, plan)
            plan = prepare(experiment, request)
        with open_run(plan) as meta, Trainer(plan, meta, hooks_of(plan, hooks)) as trainer:
            trainer.resume()
            files = ", ".join(sorted(plan.spec.code))
            with unchanged(files) if files else nullcontext(trainer.check_torch) as check:
                trainer.check_torch = check
                trainer.fit()
                return finish(trainer)


@contextmanager
def open_run(plan: Plan) -> Iterator[dict[str, Any]]:
    """Lock the run folder, and write config.yaml, meta.json and status.json, in this order.

    Yield the content of meta.json; nothing on the ranks that do not write.
    """
    run, before = plan.run, plan.before
    if ranks.own_rank():  # rank 0 writes
        yield {}
        return
    make_output_folder(run.path)
    with run.lock():
        now = read_record(run) if run.exists and not plan.request.rerun else None
        if (now and (now.status, now.step)) != (before and (before.status, before.step)):
            raise InUseError(f"{run.path}: another process has changed this run just now")
        meta = describe(plan)
        if plan.request.rerun:
            delete_run_files(run.path)
        if plan.inexact:
            run.delete_result()
        run.create(plan.spec)
        if plan.split and not (plan.run.path / SPLIT).exists():
            commit(plan.run.path / SPLIT, plan.split)
        run.set_meta(meta)
        run.set_status("running", plan.checkpoint.step if plan.checkpoint else 0)
        yield meta


def describe(plan: Plan) -> dict[str, Any]:
    before, spec, training = plan.before, plan.spec, plan.training
    arithmetic = {name: getattr(training, name) for name in ("precision", "kernels", "compiled")}
    if ranks.size() > 1:
        arithmetic["ranks"] = ranks.size()
    known = dict(before.meta) if before else {}
    known.pop("config", None)  # of 1.0.0, which repeated it
    was_new = known.pop("new_head", False)
    facts = environment(training.device) | arithmetic
    meta = run_metadata(plan.experiment, plan.data, facts, known, plan.request.command)
    asked = plan.experiment.spec
    if before and (edited_configuration(before) or changes_of(asked, before)):
        meta["config_hash"] = config_hash(asked)  # another than the one begun
    meta["config_sha256"] = sha256(config_text(spec).encode())
    meta["parameters"] = training.parameters
    meta |= describe_sources(plan)
    if spec.train.batch_size != asked.train.batch_size:
        meta[SHRUNK_FROM] = asked.train.batch_size
    if spec.data.resize != asked.data.resize:
        meta[RESIZED] = True
    if not spec.train.epochs and (was_new if plan.checkpoint else has_new_head(plan)):
        meta["new_head"] = True
    if not plan.measures_test:
        meta |= NO_TEST
    if plan.inexact:
        step = plan.checkpoint.step if plan.checkpoint else 0
        note = f"from step {step}: {describe_changes(plan.inexact)}"
        if before:
            plan.request.on_message(f"the run is no longer exact and is marked: {note}")
        meta["inexact"] = [*meta.get("inexact", []), note]
    return meta


def has_new_head(plan: Plan) -> bool:
    """Return whether a new training begins with a head that no training has changed."""
    spec, first = plan.spec, plan.first
    reads_head = spec.task.row.classifies or spec.task.row.answers
    if spec.train.init_head == "probe" or not reads_head:
        return False
    if isinstance(first, RunDir):
        row = first.spec().task.row
        if read_record(first).new_head or not (row.classifies or row.answers):
            return True
    initial = encoder_of(spec, new_module(spec))
    trained = dict(encoder_of(spec, plan.training.module).named_parameters())
    heads = [(n, value) for n, value in initial.named_parameters() if n in initial.head_names]
    return bool(heads) and all(trained[name].cpu().equal(value) for name, value in heads)


def describe_sources(plan: Plan) -> dict[str, Any]:
    sources: dict[str, Any] = {}
    if isinstance(plan.first, RunDir):
        sources["init_sha256"], sources["init_step"] = start_facts(plan.first)
        if plan.spec.pretrain:
            sources["pretrained"] = describe_cost_of(plan.first)
    if teacher := plan.spec.task.taught_by:
        sources["teacher"] = describe_cost_of(find_run(teacher_run(plan.spec)))
        sources["teacher_sha256"] = teacher.sha256
    return sources


def pretrain(part: Experiment, plan: Plan) -> None:
    """Train or continue the pre-training of a training. If another process trains it, wait."""
    assert isinstance(plan.first, RunDir)
    output = plan.first.path
    request = replace(
        plan.request, output=output, resume=True, rerun=False, stop_after=None, first=None
    )
    epochs = quantity(part.spec.train.epochs, "epoch")
    request.on_message(f"pre-training with task {part.spec.task.name} for {epochs} in {output}")
    while True:
        try:
            train(part, request)
            return
        except InUseError:
            if ranks.size() > 1:  # the others may not have met it
                raise
            time.sleep(POLL_SECONDS)
        except (ConfigError, InputError) as error:
            hint = f"this run is the pre-training; remove it: {RunDir(output).command('runs rm')}"
            raise type(error)(f"{error}\n{hint}") from error
        except StoppedError as error:
            raise StoppedError(
                "stopped in the pre-training; a checkpoint was saved. The same command continues",
                error.exit_code - 128,
            ) from error
