"""Weights of other programs: read by a child process, renamed, and laid down as a run."""

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
from vitcli.runner.train.start import is_free
from vitcli.runner.weights.unpickle import SECONDS
from vitcli.version import PACKAGE, __version__

PREFIXES = ("module.", "_orig_mod.", "model.")
"""What DistributedDataParallel, torch.compile and wrappers put before every name."""
SHOWN = 5
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
    """Lay down a file's weights as a run of an experiment, which nothing was trained in.

    ``.safetensors`` is read here, everything else only by a child process with limits; nothing of
    the run folder is written unless every tensor fits.

    Raises:
        InputError: The file is damaged, hostile, or holds another model.
        ConfigError: There is something in the run folder.
    """
    run = RunDir(output)
    if output.exists() and not (output.is_dir() and is_free(output)):
        raise ConfigError(f"{output} holds files; choose another -o")
    state = own_names(read_tensors(file))
    data = load_data(
        experiment.spec.data, data_dir=data_dir, offline=offline, on_message=on_message
    )
    spec = resolve(experiment.spec, data)
    model = encoder_of(spec, new_module(spec))
    weights = fitting(state, model, file)
    with run.lock():
        if not is_free(output):
            raise ConfigError(f"{output} holds files by now; choose another -o")
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
        facts = {"weights": "model", "model": model_hash(spec.model)}
        tensors = {f"model.{name}": tensor for name, tensor in weights.items()}
        save_checkpoint(run.checkpoints, Checkpoint(0, tensors, facts))
        keep_weights(run.checkpoints)
        run.set_status("finished", 0, "imported")
    return run


def read_tensors(file: Path) -> dict[str, Tensor]:
    """The tensors of a file, by whatever names they have there.

    Raises:
        InputError: It cannot be read, or is refused.
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
    words = [
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
            words,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=3 * SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise InputError(f"{file}: refused: it took more than {3 * SECONDS} s to read") from error
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        reason = said[-1] if said and done.returncode > 0 else "it used too much memory or time"
        raise InputError(f"{file}: refused: {reason}")


def own_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors under vitcli's names, where they have those or timm's."""
    names = list(state)
    for prefix in PREFIXES:
        if names and all(name.startswith(prefix) for name in names):
            return own_names({name.removeprefix(prefix): state[name] for name in names})
    is_timm = any(name.startswith(("patch_embed.proj.", "blocks.0.norm1.")) for name in names)
    return from_timm(state) if is_timm else dict(state)


def from_timm(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state dict of timm's VisionTransformer under vitcli's names.

    Its convolution over patches becomes the linear layer that it is.
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


def fitting(state: Mapping[str, Tensor], model: ImageModel, file: Path) -> dict[str, Any]:
    """The tensors in the model's own types.

    Raises:
        InputError: They are not exactly those of the model; names the first differences.
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
        more = f" and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
        raise InputError(
            f"{file} does not fit the experiment's model: {'; '.join(problems[:SHOWN])}{more}"
        )
    found = {name: state[name].to(wanted[name].dtype) for name in wanted}
    for name, value in found.items():
        if not value.isfinite().all():
            raise InputError(f"{file}: {name} has values that are not finite")
    return found
