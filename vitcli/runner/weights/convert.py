"""Import of weights that another program trained, as a run."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from vitcli.core.models.image_model import ImageModel
from vitcli.runner.data.load import load_data
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.experiment.build import encoder_of, new_module
from vitcli.runner.experiment.config import Experiment, config_hash, model_hash
from vitcli.runner.experiment.resolve import resolve
from vitcli.runner.files import commit_json
from vitcli.runner.run.checkpoint import Checkpoint, keep_weights, save_checkpoint
from vitcli.runner.run.folder import RunDir
from vitcli.runner.train.start import is_effectively_empty
from vitcli.runner.weights.unpickle import SECONDS
from vitcli.version import PACKAGE, __version__

PREFIXES = ("module.", "_orig_mod.", "model.")
"""Prefixes that DistributedDataParallel, torch.compile and wrappers add to every name."""
MAX_DIFFERENCES = 5
"""Number of differences that an error names."""
TIMM_BLOCK = {
    "norm1": "attn.norm",
    "norm2": "ffn.norm",
    "attn": "attn.inner",
    "mlp": "ffn.inner",
    "ls1": "attn.after.0",
    "ls2": "ffn.after.0",
}


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
    with limits. The run folder is written only if every tensor fits the model.

    Raises:
        InputError: The file is damaged, hostile, or holds another model.
        ConfigError: The run folder already holds files.
    """
    run = RunDir(output)
    if output.exists() and not (output.is_dir() and is_effectively_empty(output)):
        raise ConfigError(f"{output} already holds files; choose another --name or -o")
    state = rename_tensors(read_tensors(file))
    data = load_data(
        experiment.spec.data, data_dir=data_dir, offline=offline, on_message=on_message
    )
    spec = resolve(experiment.spec, data)
    model = encoder_of(spec, new_module(spec))
    weights = match_tensors(state, model, file)
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


def rename_tensors(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors with the names of vitcli or timm under the names of vitcli."""
    names = list(state)
    for prefix in PREFIXES:
        if names and all(name.startswith(prefix) for name in names):
            return rename_tensors({name.removeprefix(prefix): state[name] for name in names})
    is_timm = any(name.startswith(("patch_embed.proj.", "blocks.0.norm1.")) for name in names)
    return rename_timm_tensors(state) if is_timm else dict(state)


def rename_timm_tensors(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the state dict of timm's VisionTransformer under the names of vitcli.

    The patch embedding, a convolution in timm, becomes the equivalent linear layer.
    """
    found = {}
    for name, value in state.items():
        parts = name.split(".")
        if parts[0] == "blocks" and len(parts) > 2:
            parts[2] = TIMM_BLOCK.get(parts[2], parts[2])
        if parts[:2] == ["patch_embed", "proj"]:
            parts[1] = "0.proj"
            value = value.flatten(1) if parts[-1] == "weight" else value
        key = {"pos_embed": "pos_embed.table", "reg_token": "reg_tokens"}.get(name, ".".join(parts))
        found[key.replace("fc_norm", "norm")] = value
    return found


def match_tensors(state: Mapping[str, Tensor], model: ImageModel, file: Path) -> dict[str, Any]:
    """Return the tensors in the types of the model.

    Raises:
        InputError: The tensors are not exactly those of the model. The text names differences.
    """
    wanted = model.state_dict()
    problems = [f"{name} is missing" for name in wanted if name not in state]
    problems += [f"{name} is not in the model" for name in state if name not in wanted]
    problems += [
        f"{name} is {tuple(state[name].shape)}, not {tuple(wanted[name].shape)}"
        for name in wanted
        if name in state and state[name].shape != wanted[name].shape
    ]
    if problems:
        left = len(problems) - MAX_DIFFERENCES
        more = f" and {left} more" if left > 0 else ""
        first = "; ".join(problems[:MAX_DIFFERENCES])
        raise InputError(f"{file} does not fit the experiment's model: {first}{more}")
    found = {name: state[name].to(wanted[name].dtype) for name in wanted}
    for name, value in found.items():
        if not value.isfinite().all():
            raise InputError(f"{file}: {name} has values that are not finite")
    return found
