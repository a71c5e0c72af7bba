"""One step of a run, taken again with the range of each layer. Writes nothing."""

import math
from typing import Any

from vitcli.core import ranks
from vitcli.core.inspect.ranges import LayerRanges
from vitcli.core.train.training import Step, Training
from vitcli.runner.errors import ConfigError
from vitcli.runner.experiment.config import Experiment
from vitcli.runner.machine.device import chosen_kernels, pick_device
from vitcli.runner.machine.resources import SMALLER, resource_errors
from vitcli.runner.report.report import DataTable, Fact, Field, Report, hidden
from vitcli.runner.run.checkpoint import Checkpoint
from vitcli.runner.train.build import settings
from vitcli.runner.train.exactness import describe_changes, is_exact, refuse_unfit
from vitcli.runner.train.prepare import Plan, Request, prepare


def replay(experiment: Experiment, request: Request, last: int) -> Report:
    """Take the steps of a run up to ``last`` again, or to the first that is not finite."""
    if ranks.size() > 1:
        raise ConfigError("--replay needs a single process; start it without torchrun")
    device = pick_device(request.device)
    with resource_errors(SMALLER), chosen_kernels(device, experiment.spec.train.deterministic):
        plan = prepare(experiment, request, replay=last)
        training, checkpoint = plan.training, plan.checkpoint
        if plan.pretraining:
            raise ConfigError(f"{plan.run.name}: its pre-training is not finished yet")
        if last > training.num_steps:
            raise ConfigError(
                f"--replay {last}: {plan.run.name} has {training.num_steps:,} steps; type a number"
                f" from 1 to {training.num_steps}"
            )
        if checkpoint:
            with refuse_unfit(plan.run, checkpoint.step):
                training.load(checkpoint.step, checkpoint.part, checkpoint.state["scaler"])
        first = training.step + 1
        request.on_message(f"taking the steps from {first} on again, up to step {last}")
        training.module.train()
        with settings(training):
            before, step = last_step(training, last)
            layers = watch_step(training, before)
    return build_report(plan, step, first, layers.rows())


def last_step(training: Training, last: int) -> tuple[Checkpoint, Step]:
    """Take steps up to ``last``, or to one that is not finite: return what was before it, and it.

    A step is not finite if a sum of its epoch or a weight is not.
    """
    while True:
        before = state_of(training)
        for step in training.run_epoch(training.step // training.steps_per_epoch):
            changed = (training.sums, *training.module.parameters())
            if training.step == last or not all(tensor.isfinite().all() for tensor in changed):
                return before, step
            before = state_of(training)
        training.take_means()


def state_of(training: Training) -> Checkpoint:
    tensors = {name: tensor.clone() for name, tensor in training.tensors().items()}
    scaler = training.scaler.state_dict() if training.scaler else None
    return Checkpoint(training.step, tensors, {"scaler": scaler})


def watch_step(training: Training, before: Checkpoint) -> LayerRanges:
    """Take the step after a state with the kernels of the run, but no compiler and no CUDA graph:
    neither calls a layer on its own."""
    training.load(before.step, before.part, before.state["scaler"])
    training.task.network, training.graphs = training.module, None
    layers = LayerRanges(training.module)
    scale = training.scaler.get_scale() if training.scaler else 1.0
    with layers.watch(scale):
        next(training.run_epoch(training.step // training.steps_per_epoch))
    return layers


def build_report(plan: Plan, step: Step, first: int, rows: list[dict[str, Any]]) -> Report:
    run, record = plan.run, plan.before
    assert record
    bad = next((row for row in rows if row["not_finite_share"]), None)
    place = f"{bad['values']} of {bad['layer']}" if bad else "none"
    epoch = (step.step - 1) // plan.training.steps_per_epoch + 1
    notes = []
    if plan.inexact:
        notes.append(f"note: not the bits of the run: {describe_changes(plan.inexact)}")
    if record.state == "diverged" and not bad:
        notes.append("note: all values are finite here, so a later step or an evaluation was not")
    return Report(
        facts=[
            Fact("run", str(run.path), text=run.name),
            Fact("step", step.step, about=f"in epoch {epoch}; steps {first} to {step.step} again"),
            *hidden(epoch=epoch, first_step=first),
            *(number(name, value.item()) for name, value in step.scalars.items()),
            Fact("lr", step.lr, label="learning rate"),
            Fact("first_not_finite", bad and place, label="first not finite", text=place),
            Fact("exact", is_exact(record.meta, plan.training.device) and not plan.inexact),
        ],
        tables=[
            DataTable(
                "layers",
                ["layer", "values", "min", "max", "rms", Field("not_finite_share", "not finite")],
                rows,
            )
        ],
        notes=notes,
    )


def number(name: str, value: float) -> Fact:
    is_finite = math.isfinite(value)
    return Fact(name, value if is_finite else None, text=None if is_finite else str(value))
