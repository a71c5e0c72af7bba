"""Whether a continued and an uninterrupted training give bit-identical results.

Another number of threads, instruction set or build of torch changes the order or the rounding of
sums, and so every weight (measured). So does torch.compile. Such a continuation is refused, unless
the user allows it. The run is then marked as inexact permanently.

On CUDA, only a training with ``train.deterministic`` gives the same bits twice. Any other training
can be continued there, but its result is never called exact.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from vitcli.core import ranks
from vitcli.core.train.training import Training
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.experiment.config import model_hash
from vitcli.runner.experiment.diff import Change
from vitcli.runner.machine.device import cpu_limits, cpu_name
from vitcli.runner.run.checkpoint import Checkpoint
from vitcli.runner.run.folder import CONFIG, RESULT, STATUS, RunDir
from vitcli.runner.run.record import EDITED, UNREADABLE, RunRecord
from vitcli.runner.text import quantity
from vitcli.runner.train import contract
from vitcli.version import __version__

BEGUN_IN = ("vitcli", "torch", "cpu_capability", "threads", "compiled", "ranks")
"""Entries of meta.json that ``numerical_environment`` has, too, with the same values."""
CHANGEABLE = (
    *("optim.lr", "optim.weight_decay", "optim.momentum", "optim.betas", "optim.eps"),
    *("optim.muon_lr", "optim.muon_momentum", "optim.schedule", "optim.warmup_epochs"),
    *("optim.min_lr_ratio", "optim.max_grad_norm"),
    *("train.epochs", "train.label_smoothing", "train.eval_every", "train.compile"),
    *("train.accumulate", "train.grad_checkpointing", "train.deterministic"),
    "data.augment.",
)
"""Fields, and prefixes of fields, whose values may change when a run is continued. A change of
these fields changes neither the meaning of a tensor in the checkpoint nor the numbers of steps."""


def numerical_environment(training: Training) -> dict[str, Any]:
    """Return what the rounding depends on, besides configuration, precision and kernels."""
    device = training.device
    on_gpu = device.type == "cuda"
    return {
        "vitcli": __version__,
        "torch": torch.__version__,
        "device": device.type,
        "hardware": torch.cuda.get_device_name(device) if on_gpu else cpu_name(),
        "cpu_capability": None if on_gpu else torch.backends.cpu.get_cpu_capability(),
        "limits": None if on_gpu else cpu_limits() or "none",
        "threads": None if on_gpu else torch.get_num_threads(),
        "compiled": training.compiled,
        "deterministic": torch.are_deterministic_algorithms_enabled() if on_gpu else None,
        "ranks": ranks.size(),
    }


def is_exact(meta: Mapping[str, Any], device: torch.device) -> bool:
    """Return whether a run has the bits of every uninterrupted run with its configuration."""
    repeats = device.type == "cpu" or torch.are_deterministic_algorithms_enabled()
    return repeats and not meta.get("inexact")


def checkpoint_state(training: Training) -> dict[str, Any]:
    """Return what a checkpoint holds beside its tensors and the trainer's progress."""
    return {
        "scaler": training.scaler.state_dict() if training.scaler else None,
        "precision": training.precision,
        "kernels": training.kernels,
        "weights": "ema" if training.ema else "model",
        "circumstances": numerical_environment(training),
        "model": model_hash(training.spec.model),
        **({"outside": contract.state_outside(training)} if training.spec.code else {}),
    }


def changes_since(run: RunDir, checkpoint: Checkpoint, training: Training) -> dict[str, Change]:
    """Return what has changed in the environment since a checkpoint of a run: name -> (then, now).

    Checkpoints that name no number of ranks were trained in one process.
    """
    state, precision = checkpoint.state, training.precision
    if checkpoint.step > training.num_steps:
        done = checkpoint.step // training.steps_per_epoch
        raise ConfigError(f"train.epochs: this run already has {quantity(done, 'epoch')}")
    model = model_hash(training.spec.model)
    if state.get("model", model) != model:
        raise InputError("the checkpoint of this run belongs to another model")
    if "circumstances" not in state:
        raise InputError("the checkpoint of this run is older than version 0.8.0")
    if state.get("precision") != precision:
        raise ConfigError(
            f"this run was trained in {state.get('precision')}, but would continue in {precision};"
            f" continue it on its original kind of hardware, or start over: {run.rerun_command}"
            f" --precision {precision}"
        )
    return changed_environment(state["circumstances"], training)


def lost_state(checkpoint: Checkpoint, training: Training) -> dict[str, Change]:
    """Return what own parts had outside of a checkpoint, where steps are left: name -> (then, now).

    Nothing of it can be restored. What own code keeps elsewhere, as in a closure or a global name,
    is not seen; ``vitcli experiments check`` compares the weights.
    """
    before = checkpoint.state.get("outside")
    if before is None or checkpoint.step == training.num_steps:
        return {}
    now = contract.state_outside(training)
    names = [
        name
        for name in {**before, **now}
        if before.get(name) != now.get(name) or now[name] == contract.UNREADABLE
    ]
    return {name: (before.get(name), now.get(name)) for name in names}


def changed_environment(before: Mapping[str, Any], training: Training) -> dict[str, Change]:
    now, before = numerical_environment(training), {"ranks": 1, **before}
    common = [name for name in now if name in before and now[name] is not None]
    return {name: (before[name], now[name]) for name in common if before[name] != now[name]}


@contextmanager
def refuse_unfit(run: RunDir, step: int) -> Iterator[None]:
    """Name the checkpoint of a step if what is loaded in the block does not fit."""
    try:
        yield
    except (RuntimeError, ValueError, KeyError, TypeError, IndexError) as error:
        where = run.checkpoints / str(step)
        raise InputError(f"{where} does not fit config.yaml: {error}") from error


def may_change(field: str) -> bool:
    return any(field == name or (name[-1] == "." and field.startswith(name)) for name in CHANGEABLE)


def describe_changes(changes: Mapping[str, Change]) -> str:
    """Return changes as text, such as ``threads 2 -> 1, torch 2.11.0 -> 2.12.0``."""
    return ", ".join(f"{name} {before} -> {now}" for name, (before, now) in changes.items())


def refuse_inexact(run: RunDir, changes: Mapping[str, Change]) -> None:
    if not changes:
        return
    hints = {
        CONFIG: f"restore the {CONFIG} that the training began with",
        "threads": "set OMP_NUM_THREADS={}",
        "ranks": "start it with torchrun --nproc-per-node {}",
    }
    hint = "continue it in its original environment"
    if len(changes) == 1:
        ((name, (before, _)),) = changes.items()
        hint = hints.get(name, hint).format(before)
    raise ConfigError(
        f"{run.name}: the result would not be bit-identical to an uninterrupted run"
        f" ({describe_changes(changes)}); {hint}, continue with --allow-inexact, which"
        f" marks the run permanently, or start over: {run.rerun_command}"
    )


def refuse_damage(record: RunRecord, *, writes: bool = True) -> None:
    """Refuse to continue a run with damaged files, unless the training ``writes`` these anew."""
    for problem in record.problems:
        name, _, reason = problem.partition(": ")
        is_written = name in (STATUS, RESULT) and not reason.startswith(UNREADABLE)
        is_edited = problem == f"{CONFIG}: {EDITED}"
        if writes and (is_written or is_edited):
            continue
        instead = f"start over: {record.folder.rerun_command}"
        if name == CONFIG and not is_edited:
            instead = f"remove the run: {record.folder.command('runs rm')}"
        raise InputError(f"{record.path}/{problem}; restore the file, or {instead}")


def edited_configuration(record: RunRecord) -> dict[str, Change]:
    """Return the hashes (then, now) of a config.yaml that is not that of the training."""
    if f"{CONFIG}: {EDITED}" not in record.problems:
        return {}
    return {CONFIG: (str(record.meta["config_sha256"])[:8], record.folder.config_sha256()[:8])}
