"""Whether a continued training ends with the bits of an uninterrupted one.

Measured: another number of threads, another instruction set or another build of torch changes the
order or the rounding of sums, and so every weight. Such a continuation is refused unless it is
asked for, and then the run carries the mark for ever.
"""

from collections.abc import Mapping
from typing import Any

import torch

from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.experiment.diff import Change
from vitcli.runner.machine.device import cpu_name
from vitcli.version import __version__

RECORDED = ("vitcli", "torch", "cpu_capability")
"""What meta.json has always said of a session, beside its threads."""
CHANGEABLE = (
    *("optim.lr", "optim.weight_decay", "optim.momentum", "optim.betas", "optim.eps"),
    *("optim.muon_lr", "optim.muon_momentum", "optim.schedule", "optim.warmup_epochs"),
    *("optim.min_lr_ratio", "optim.max_grad_norm"),
    *("train.epochs", "train.label_smoothing", "train.eval_every", "train.compile"),
    *("train.accumulate", "train.grad_checkpointing"),
    "data.augment.",
)
"""Fields, and beginnings of fields, that a run may be continued with other values of: no tensor of
the checkpoint has another meaning then, and no step is another step."""


def numerical_environment(device: torch.device) -> dict[str, Any]:
    """What the bits rest on, beside configuration, seed, precision and kernels."""
    on_gpu = device.type == "cuda"
    return {
        "vitcli": __version__,
        "torch": torch.__version__,
        "device": device.type,
        "hardware": torch.cuda.get_device_name(device) if on_gpu else cpu_name(),
        "cpu_capability": None if on_gpu else torch.backends.cpu.get_cpu_capability(),
        "threads": None if on_gpu else torch.get_num_threads(),
    }


def changes(
    state: Mapping[str, Any],
    meta: Mapping[str, Any],
    device: torch.device,
    precision: str,
    model: str,
) -> dict[str, Change]:
    """What is no longer as a checkpoint's state says: name -> (before, now).

    Checkpoints of 0.5.0 and before do not say; then the last session in meta.json does.

    Raises:
        ConfigError: The precision; that is another training.
        InputError: The model, by its hash.
    """
    if state.get("model", model) != model:
        raise InputError("the checkpoint of this run is that of another model")
    if state.get("precision") != precision:
        raise ConfigError(
            f"this run was trained in {state.get('precision')}, here it would go on in {precision};"
            f" continue it on hardware like the first, or start anew with --precision {precision}"
            " --rerun"
        )
    now = numerical_environment(device)
    session = (meta.get("sessions") or [meta])[-1]
    names = [name for name in (*RECORDED, "threads") if name in session and now[name] is not None]
    before = state.get("circumstances") or {name: session[name] for name in names}
    common = [name for name in now if name in before]
    return {name: (before[name], now[name]) for name in common if before[name] != now[name]}


def may_change(field: str) -> bool:
    """Whether a run can be continued at all with another value of a configuration field."""
    return any(field == name or (name[-1] == "." and field.startswith(name)) for name in CHANGEABLE)


def described(found: Mapping[str, Change]) -> str:
    """Such as ``threads 2 -> 1, torch 2.11.0 -> 2.12.0``."""
    return ", ".join(f"{name} {before} -> {now}" for name, (before, now) in found.items())


def refuse(run: str, found: Mapping[str, Change]) -> None:
    """
    Raises:
        ConfigError: Anything differs.
    """
    if not found:
        return
    threads = found.get("threads", (None, None))[0]
    hint = f"set OMP_NUM_THREADS={threads}" if [*found] == ["threads"] else "continue it as before"
    raise ConfigError(
        f"{run} would not end with the bits of an uninterrupted run ({described(found)}); {hint},"
        " start over with --rerun, or go on with --allow-inexact, which marks the run for good"
    )
