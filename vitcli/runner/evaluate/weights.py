"""Weights of trained runs, and published ones that the models of a family may start from."""

import hashlib
import shlex
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor, nn

from vitcli.core.models.image_model import ImageModel
from vitcli.core.objectives.objective import task_class
from vitcli.core.spec import FAMILIES, GENERATED, ExperimentSpec
from vitcli.plugin import load_target
from vitcli.runner.errors import InputError, OwnCodeError, UserError
from vitcli.runner.experiment.build import encoder_of, new_module
from vitcli.runner.experiment.config import model_hash
from vitcli.runner.machine.device import pick_device
from vitcli.runner.run import folder
from vitcli.runner.run.checkpoint import latest_checkpoint, load_checkpoint
from vitcli.runner.run.record import EDITED, RunRecord, read_record
from vitcli.runner.text import Listener, ignore_message

DEFAULT_MODEL = "cifar10-pocket"
UNTRAINED = "its head was never trained, so its answers mean nothing; train the run first"
"""Of a run with ``new_head``."""


def run_weights(
    run: folder.RunDir, step: int | None = None, on_message: Listener = warnings.warn
) -> dict[str, Tensor]:
    """Return the weights of a checkpoint, the last by default; with EMA the averaged weights.

    A run with an edited config.yaml is refused: its weights belong to another configuration.
    """
    record = read_record(run)
    if f"{folder.CONFIG}: {EDITED}" in record.problems:
        settings = str(run.path / folder.CONFIG)
        raise InputError(
            f"{settings}: {EDITED}; restore the file, or train a run with it:"
            f" {shlex.join(['vitcli', 'train', settings])}"
        )
    is_over = record.status in folder.RESULT_STATES
    again = run.rerun_command if is_over else run.command("train --resume")
    latest = None if step is not None else latest_checkpoint(run.checkpoints, on_message)
    kept = folder.steps(run.checkpoints)
    if not kept:
        if record.imported:
            raise InputError(
                f"{run.path}: its imported weights are gone; import them again, with another --name"
            )
        why = _why_no_checkpoint(record)
        raise InputError(f"{run.path}: {why}; train it{' again' * is_over}: {again}")
    advice = f"; train it again: {again}" if step == record.step else ""
    if step is not None and step not in kept:
        raise InputError(f"{run.path}: no checkpoint of step {step}{advice}")
    try:
        checkpoint = latest or load_checkpoint(run.checkpoints / str(step))
    except InputError as error:
        raise InputError(f"{error}{advice}") from error
    if latest and kept[0] < record.step:
        on_message(
            f"{run.name}: the checkpoint of step {record.step} is missing; step {latest.step} is"
            " used"
        )
    model = model_hash(run.spec().model)
    if checkpoint.state.get("model", model) != model:
        raise InputError(f"{run.path}: its checkpoints belong to another model")
    weights = checkpoint.part(str(checkpoint.state.get("weights")))
    if run.is_only_a_classifier(run.config()):
        weights = {name.removeprefix("encoder."): tensor for name, tensor in weights.items()}
    if not weights or any(tensor.isnan().any() for tensor in weights.values()):
        raise InputError(f"{run.path}: the weights of step {checkpoint.step} are not finite")
    return weights


def _why_no_checkpoint(record: RunRecord) -> str:
    if record.status not in folder.RESULT_STATES:
        return f"no checkpoint yet ({record.state})"
    if record.status == "diverged" and not record.step:
        return f"it diverged before its first checkpoint ({record.reason})"
    return "its checkpoints are gone"


def load_model(
    run: folder.RunDir | str | Path,
    device: str = "cpu",
    step: int | None = None,
    on_message: Listener = warnings.warn,
) -> ImageModel:
    """Return the trained model of a run in eval mode.

    Args:
        run: A run folder, a name under runs/, or a bundled model.
        device: The device of the model: cpu, cuda, mps or auto.
        step: The step of the checkpoint; by default the last.
        on_message: Receives notes for the user.

    Raises:
        InputError: There is no such run, or it has no undamaged checkpoint.
    """
    run = run if isinstance(run, folder.RunDir) else folder.find_run(str(run))
    spec = run.spec()
    return encoder_of(spec, load_module(run, spec, device, step, on_message))


def load_module(
    run: folder.RunDir,
    spec: ExperimentSpec,
    device: str = "cpu",
    step: int | None = None,
    on_message: Listener = warnings.warn,
) -> nn.Module:
    """Return the whole trained module of a run in eval mode."""
    weights = run_weights(run, step, on_message)
    try:
        module = new_module(spec)
        module.load_state_dict(weights)
    except OwnCodeError:
        raise
    except (RuntimeError, UserError) as error:
        raise InputError(f"{run.path}: checkpoint and config.yaml do not fit together") from error
    if not all(parameter.isfinite().all() for parameter in module.parameters()):
        raise InputError(f"{run.path}: the weights of its checkpoint are not finite")
    return module.to(pick_device(device)).eval()


def final_step(run: folder.RunDir) -> int:
    """Return the step of the last checkpoint, also if that is missing now."""
    return max(read_record(run).step, run.last_step())


def encoder_weights(
    run: folder.RunDir, step: int | None = None, on_message: Listener = warnings.warn
) -> dict[str, Tensor]:
    """Return the weights that another training may start from."""
    name = task_class(run.spec()).encoder_name
    prefix = f"{name}." if name else ""
    return {
        key.removeprefix(prefix): value
        for key, value in run_weights(run, step, on_message).items()
        if key.startswith(prefix)
    }


def weights_sha256(weights: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of tensors: of their names, types, shapes and bytes."""
    digest = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        digest.update(f"{name} {tensor.dtype} {[*tensor.shape]}\n".encode())
        digest.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def start_sha256(run: folder.RunDir) -> str:
    """Return the SHA-256 of the weights that another training may start from."""
    return start_facts(run)[0]


def start_facts(run: folder.RunDir) -> tuple[str, int]:
    """Return ``start_sha256``, and the step of these weights: of the last whole checkpoint."""
    files = sorted(run.checkpoints.resolve().glob("*/*"))
    return _start_facts(run.path, tuple((file, file.stat().st_mtime_ns) for file in files))


@lru_cache(maxsize=8)
def _start_facts(path: Path, files: tuple[tuple[Path, int], ...]) -> tuple[str, int]:
    run = folder.RunDir(path)
    digest = weights_sha256(encoder_weights(run, on_message=ignore_message))
    used = latest_checkpoint(run.checkpoints, ignore_message)
    assert used, "it has weights"
    return digest, used.step


def default_run() -> folder.RunDir:
    """Return the newest finished run that classifies, or the bundled model if there is none.

    Trials of a study are skipped, because most of them lack a part on purpose. Runs on a
    generated data set are skipped, because they cannot classify photos, and so are runs whose head
    was never trained.
    """
    for run in reversed(folder.list_runs()):
        record = read_record(run)
        is_real = not record.variant and record.meta.get("data") not in GENERATED
        is_trained = record.state == "finished" and not record.new_head
        if is_real and is_trained and record.task.classifies:
            return run
    return folder.RunDir(folder.BUNDLED / DEFAULT_MODEL)


@dataclass(frozen=True, kw_only=True)
class PublishedWeights:
    """How a family finds and reads weights that others have trained."""

    first_file: Callable[[ExperimentSpec, bool, Listener], Path | None]
    """Returns the file that a model starts from, offline if asked; None for a run or random
    weights."""
    load: Callable[[ImageModel, folder.RunDir | Path, Listener, Sequence[str]], None]
    """Copies the weights of a run or file into a model. A head for classes of other names stays."""
    model: Callable[[str, bool, Listener], tuple[ExperimentSpec, ImageModel]]
    """Returns the model of a name with its published weights, offline if asked."""
    here: Callable[[], Sequence[str]]
    """Returns the names of the models whose weights are on this machine."""
    download_bytes: Callable[[str], int]
    """Returns about how many bytes a name would download, without a connection; 0 for none."""


def published_weights(family: str) -> PublishedWeights | None:
    """Return the published weights of a family, if it has some."""
    target = FAMILIES[family].weights
    return load_target(target) if target else None


def first_file(spec: ExperimentSpec, offline: bool, on_message: Listener) -> Path | None:
    """Return the file that the model of an experiment starts from; else None."""
    weights = published_weights(spec.model.family)
    return weights.first_file(spec, offline, on_message) if weights else None
