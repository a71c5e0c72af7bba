"""The end of a training: test set, predictions, TensorBoard and result.json."""

from collections.abc import Mapping
from typing import Any

from vitcli.core import ranks
from vitcli.core.data.batches import Batch
from vitcli.core.metric import METRICS
from vitcli.core.metrics.classification import measure_logits
from vitcli.core.objectives.objective import Outputs
from vitcli.runner.evaluate.weights import load_module
from vitcli.runner.experiment.build import without_memory
from vitcli.runner.machine.device import arithmetic
from vitcli.runner.run.folder import RunDir, steps
from vitcli.runner.run.predictions import describe_one_answer, describe_undefined, save_outputs
from vitcli.runner.run.record import RunRecord, read_record
from vitcli.runner.text import quantity
from vitcli.runner.train.contract import are_same
from vitcli.runner.train.exactness import is_exact
from vitcli.runner.train.flops import count_operations
from vitcli.runner.train.trainer import NO_BEST, Trainer

ABOUT = ("experiment", "config_hash", "seed", "commit", "dirty", "hardware")
"""Entries of meta.json beside the numbers of a stopped training, which may be copied elsewhere."""
COSTS = ("train_flops", "train_seconds")


def finish(trainer: Trainer) -> RunRecord:
    """Measure the test images, write the result, and return the run."""
    if not ranks.own_rank():
        write_result(trainer)
    ranks.agree(0)  # the other ranks wait for the result
    return read_record(trainer.run, trainer.spec)


def write_result(trainer: Trainer) -> None:
    """Measure the test images; write predictions.npz, result.json and, last, status.json.

    A training without test images keeps the numbers of its validation split, and no predictions.
    A training that stopped after an epoch before its last one writes its numbers into status.json,
    until the run continues. So no other file differs from those of a training that did not stop.
    """
    run, training = trainer.run, trainer.training
    is_whole = trainer.step == training.num_steps or trainer.stopped_at
    outputs = trainer.test_outputs() if trainer.plan.measures_test else {}
    trainer.task.fitted = chosen_numbers(trainer)
    measured = trainer.task.measure(outputs) if outputs else {}
    trainer.check_torch()
    if trainer.step not in steps(run.checkpoints)[:1]:  # also if no step was taken
        trainer.save()
    # The operations are those of all ranks. Compiled batches are not compiled again.
    with ranks.together(False), arithmetic(training.precision):
        batch = next(training.batches(0))
        if is_whole:
            if outputs:
                save_outputs(run.path / "predictions.npz", outputs)
            for hook in trainer.hooks:
                hook.on_result(trainer, measured, batch)
        result = build_result(trainer, batch, outputs, measured)
    if not is_whole:
        epochs = trainer.spec.train.epochs
        about = {name: trainer.meta.get(name) for name in ABOUT}
        reached = about | result | {"epochs_planned": epochs}
        reason = f"stopped after {trainer.last_epoch} of {quantity(epochs, 'epoch')}"
        run.set_status("interrupted", trainer.step, reason, reached)
        return
    if trainer.spec.code:
        warn_of_lost_state(trainer)
    warn_of_one_answer(trainer, outputs, measured)
    if trainer.task.caveat:
        trainer.request.on_message(f"note: {trainer.task.caveat}")
    run.set_result(result)
    run.set_status("finished", trainer.step)


def warn_of_lost_state(trainer: Trainer) -> None:
    saved = load_module(trainer.run, trainer.spec).to(trainer.training.device)
    trained, images = trainer.training.evaluated_module, trainer.data.train[:8]
    if not are_same(trainer.task, trained, saved, images, draws=1):
        files = ", ".join(sorted(trainer.spec.code))
        trainer.request.on_message(
            f"warning: {files}: the saved weights alone are not the model that was trained, so"
            " vitcli eval will measure other numbers; keep state in parameters or buffers, and let"
            " an evaluation draw nothing (a dropout takes training=self.training)"
        )


def chosen_numbers(trainer: Trainer) -> dict[str, float]:
    """Return what the validation images choose for a trained model that answers for pictures."""
    is_trained = trainer.step or trainer.spec.train.init_head == "probe"
    answers = trainer.row.classifies or trainer.row.answers
    if not (trainer.data.val and answers and is_trained):
        return {}
    outputs, headline = trainer.outputs_of(trainer.data.val), trainer.row.headline.name
    # No epoch has measured a probe.
    value = {} if trainer.records else {f"val_{headline}": trainer.task.measure(outputs)[headline]}
    return value | trainer.task.choose(outputs)


def calibrated_numbers(trainer: Trainer, outputs: Outputs) -> dict[str, float]:
    """Return the test set's numbers with the temperature, if there is one."""
    temperature = trainer.task.fitted.get("temperature")
    if temperature is None or not outputs:
        return {}
    measured = measure_logits(outputs["logits"] / temperature, outputs["labels"])
    return {f"calibrated_{name}": measured[name] for name in ("loss", "calibration_error")}


def warn_of_one_answer(trainer: Trainer, outputs: Outputs, measured: Mapping[str, float]) -> None:
    if not trainer.row.classifies or "accuracy" not in measured or "labels" not in outputs:
        return
    for note in describe_undefined(measured):
        trainer.request.on_message(note)
    counts = outputs["labels"].bincount()
    share = float(counts.max() / counts.sum())
    if measured["accuracy"] <= share:
        name = trainer.data.class_names[int(counts.argmax())]
        trainer.request.on_message(describe_one_answer(measured["accuracy"], name, share))


def build_result(
    trainer: Trainer, batch: Batch, outputs: Outputs, measured: dict[str, float]
) -> dict[str, Any]:
    """Return the content of result.json.

    ``train_seconds`` includes evaluation and saving; ``images_per_second`` does not. Numbers of a
    pre-training, or of the teacher's own training, are not part of ``train_flops`` and
    ``train_seconds``; ``teacher_flops``, the teacher's operations in them, is. With
    ``train.early_stopping``, ``epochs`` and ``steps`` are those of the kept weights, and
    ``stopped_at`` is the last step.
    """
    row, spec, training = trainer.row, trainer.spec, trainer.training
    last = trainer.records[-1] if trainer.records else {}
    taken = trainer.stopped_at or trainer.step
    images = taken * spec.train.batch_size
    headline, measured_val = row.headline.name, trainer.best != NO_BEST
    bare = {name for name, metric in METRICS.items() if not metric.has_prefix}
    with without_memory(spec):
        operations = count_operations(spec, batch, training.module)
    flops, taught = operations.of_steps(taken, len(trainer.data.train))
    return {
        **{name if name in bare else f"test_{name}": n for name, n in measured.items()},
        f"val_{headline}": last.get(f"val_{headline}"),
        f"best_val_{headline}": trainer.best[0] if measured_val else None,
        "best_val_step": trainer.best[1] if measured_val else None,
        **{f"train_{name}": last.get(f"train_{name}") for name in row.reports},
        **trainer.task.fitted,
        **calibrated_numbers(trainer, outputs),
        "parameters": training.parameters,
        "forward_flops": operations.forward,
        "train_flops": flops,
        **({"teacher_flops": taught} if taught else {}),
        **describe_cost(trainer.meta.get("pretrained"), "pretrain"),
        **describe_cost(trainer.meta.get("teacher"), "teacher_train"),
        "epochs": trainer.step // training.steps_per_epoch,
        "steps": trainer.step,
        **({"stopped_at": trainer.stopped_at} if trainer.stopped_at else {}),
        "images_per_second": images / trainer.step_seconds if trainer.step_seconds else 0.0,
        "train_seconds": trainer.wall_seconds,
        "precision": training.precision,
        "kernels": training.kernels,
        "exact": is_exact(trainer.meta, training.device),
        "num_test": len(next(iter(outputs.values()), ())),
        **({"warning": problem} if (problem := last_problem(trainer)) else {}),
    }


def last_problem(trainer: Trainer) -> str:
    """Return the last diagnosis of the task, from the records, which a resumed training keeps."""
    for record in reversed(trainer.records):
        means = {name: record.get(f"train_{name}") for name in trainer.row.reports}
        if None not in means.values() and (problem := trainer.task.diagnose(means)):
            return problem
    return ""


def describe_cost_of(run: RunDir) -> dict[str, Any]:
    result = read_record(run).result
    return {"run": run.name} | {name: result.get(name) for name in COSTS}


def describe_cost(source: dict[str, Any] | None, prefix: str) -> dict[str, Any]:
    cost = source or {}
    return {name.replace("train", prefix): cost[name] for name in COSTS if cost.get(name)}
