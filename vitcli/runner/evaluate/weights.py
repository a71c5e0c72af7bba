"""Load the weights of a trained run."""

from collections.abc import Callable
from pathlib import Path

from torch import Tensor, nn

from vitcli.core.models.image_model import ImageModel
from vitcli.core.spec import ExperimentSpec
from vitcli.core.tasks.build import task_class
from vitcli.runner.errors import InputError, UserError
from vitcli.runner.experiment.build import encoder_of, new_module
from vitcli.runner.experiment.config import model_hash
from vitcli.runner.machine.device import pick_device
from vitcli.runner.run.checkpoint import latest_checkpoint, load_checkpoint
from vitcli.runner.run.folder import BUNDLED, RunDir, find_run, list_runs, steps

DEFAULT = "cifar10-pocket"
"""The packaged model that is taken where nothing was trained."""


def ignore(_: str) -> None:
    """The default listener."""


def run_weights(
    run: RunDir, step: int | None = None, on_message: Callable[[str], None] = ignore
) -> dict[str, Tensor]:
    """The weights that count in a run: those of its last checkpoint, averaged where EMA is used."""
    if step is not None:
        if step not in steps(run.checkpoints):
            raise InputError(f"{run.path}: no checkpoint of step {step}")
        checkpoint = load_checkpoint(run.checkpoints / str(step))
    else:
        found = latest_checkpoint(run.checkpoints, on_message)
        if found is None:
            raise InputError(
                f"{run.path}: no checkpoint yet ({run.status()['state']});"
                f" train it: vitcli train --resume {run.name}"
            )
        checkpoint = found
        if checkpoint.step < (promised := run.status()["step"]):
            on_message(f"the checkpoint of step {promised} is gone, {checkpoint.step} is taken")
    own = model_hash(run.spec().model)
    if checkpoint.state.get("model", own) != own:
        raise InputError(f"{run.path}: its checkpoints are those of another model")
    weights = checkpoint.part(str(checkpoint.state.get("weights")))
    if not weights or not all(tensor.isfinite().all() for tensor in weights.values()):
        raise InputError(f"{run.path}: the weights of step {checkpoint.step} are not finite")
    return weights


def load_model(
    run: RunDir | str | Path,
    device: str = "cpu",
    step: int | None = None,
    on_message: Callable[[str], None] = ignore,
) -> ImageModel:
    """A run's trained model in eval mode.

    Args:
        run: A run folder, or a name under runs/.
        device: Where to put it: cpu, cuda, mps or auto.
        step: Which checkpoint; the last unless given.

    Raises:
        InputError: No such run, or no whole checkpoint in it.
    """
    run = run if isinstance(run, RunDir) else find_run(str(run))
    spec = run.spec()
    return encoder_of(spec, load_module(run, spec, device, step, on_message))


def load_module(
    run: RunDir,
    spec: ExperimentSpec,
    device: str = "cpu",
    step: int | None = None,
    on_message: Callable[[str], None] = ignore,
) -> nn.Module:
    """Return everything that a run trained, in eval mode.

    Raises:
        InputError: There is no whole checkpoint, or it does not fit the configuration.
    """
    weights = run_weights(run, step, on_message)
    try:
        module = new_module(spec)
        module.load_state_dict(weights)
    except (RuntimeError, UserError) as error:
        raise InputError(f"{run.path}: checkpoint and config.yaml do not fit together") from error
    return module.to(pick_device(device)).eval()


def encoder_weights(run: RunDir) -> dict[str, Tensor]:
    """Return the weights that another training may start from."""
    name = task_class(run.spec()).encoder_name
    prefix = f"{name}." if name else ""
    return {
        key.removeprefix(prefix): value
        for key, value in run_weights(run).items()
        if key.startswith(prefix)
    }


def default_run() -> RunDir:
    """The newest finished training here, else the model that comes with vitcli.

    Trials of a study are left out, since most of them lack a part on purpose, and so are models of
    the embedded shapes, which know no photo.
    """
    for run in reversed(list_runs()):
        meta = run.read("meta.json")
        is_real = not meta.get("variant") and meta.get("data") != "shapes"
        if is_real and run.status()["state"] == "finished":
            return run
    return RunDir(BUNDLED / DEFAULT)
