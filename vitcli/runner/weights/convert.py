"""Import of weights that another program trained, as a run."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from vitcli.core.spec import ExperimentSpec
from vitcli.runner.data.load import describe_data, load_data
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.experiment.build import abstract_module, encoder_of
from vitcli.runner.experiment.config import (
    Experiment,
    config_hash,
    fit_to_data,
    flatten,
    model_hash,
)
from vitcli.runner.experiment.resolve import resolve
from vitcli.runner.files import commit_json
from vitcli.runner.run.checkpoint import Checkpoint, keep_weights, save_checkpoint
from vitcli.runner.run.folder import RunDir
from vitcli.runner.train.start import is_effectively_empty
from vitcli.runner.weights.match import match_tensors
from vitcli.runner.weights.unpickle import SECONDS
from vitcli.version import PACKAGE, __version__


def import_weights(
    file: Path,
    experiment: Experiment,
    output: Path,
    *,
    data_dir: Path | None = None,
    offline: bool = False,
    on_message: Callable[[str], None],
) -> RunDir:
    """Write the weights in a file as a finished run of an experiment, without training.

    A ``.safetensors`` file is read in this process. Every other file is read by a child process
    with limits. The tensors are compared with the model before any image is read. The run folder is
    written only if every tensor fits the model.

    Raises:
        InputError: The file is damaged, hostile, or holds another model.
        ConfigError: The run folder already holds files.
    """
    run = RunDir(output)
    if output.exists() and not (output.is_dir() and is_effectively_empty(output)):
        raise ConfigError(f"{output} already holds files; choose another --name or -o")
    described = fit_to_data(experiment.spec, describe_data(experiment.spec.data))
    model = encoder_of(described, abstract_module(described))
    weights = match_tensors(read_tensors(file), model, file)
    data = load_data(
        experiment.spec.data, data_dir=data_dir, offline=offline, on_message=on_message
    )
    spec = resolve(experiment.spec, data)
    on_message(
        "note: a weights file does not hold these settings; the experiment's are used:"
        f" {unrecorded_fields(spec)}"
    )
    with run.lock():
        if not is_effectively_empty(output):
            raise ConfigError(f"{output} now holds files of another process; choose another --name")
        run.create(spec)
        meta = {
            "experiment": experiment.name,
            "config_hash": config_hash(experiment.spec),
            "data": data.name,
            "data_hash": data.data_hash,
            "imported": file.name,
            "vitcli": __version__,
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "seed": spec.seed,
        }
        commit_json(run.path / "meta.json", meta)
        checkpoint_state = {"weights": "model", "model": model_hash(spec.model)}
        tensors = {f"model.{name}": tensor for name, tensor in weights.items()}
        save_checkpoint(run.checkpoints, Checkpoint(0, tensors, checkpoint_state))
        keep_weights(run.checkpoints)
        run.set_status("finished", 0, "imported")
    return run


def unrecorded_fields(spec: ExperimentSpec) -> str:
    """Return the settings that change a model's output, but that weights do not show."""
    names = ("model.num_heads", "model.norm_eps", "data.mean", "data.std")
    values = flatten(spec.model_dump(mode="json"))
    return ", ".join(f"{name}={_rounded(values[name])}" for name in names if name in values)


def _rounded(value: Any) -> Any:
    return [round(part, 4) for part in value] if isinstance(value, list) else value


def read_tensors(file: Path) -> dict[str, Tensor]:
    """Return the tensors of a file under their names in the file.

    Raises:
        InputError: The file cannot be read, or is refused.
    """
    if not file.is_file():
        raise InputError(f"{file}: not a file")
    if file.suffix == ".safetensors":
        return _load(file, file)
    with tempfile.TemporaryDirectory() as scratch:
        target = Path(scratch) / "weights.safetensors"
        _unpickle(file, target)
        return _load(target, file)


def _load(path: Path, named: Path) -> dict[str, Tensor]:
    try:
        return dict(safetensors.torch.load_file(path))
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{named}: not a safetensors file: {error}") from error


def _unpickle(file: Path, target: Path) -> None:
    package = str(PACKAGE.parent)
    command = [
        sys.executable,
        "-P",
        "-m",
        "vitcli.runner.weights.unpickle",
        str(file.resolve()),
        str(target),
    ]
    paths = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=3 * SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise InputError(f"{file}: refused: it took more than {3 * SECONDS} s to read") from error
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        reason = lines[-1] if lines and done.returncode > 0 else "it used too much memory or time"
        raise InputError(f"{file}: refused: {reason}")
