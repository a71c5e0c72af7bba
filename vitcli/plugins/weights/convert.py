"""Import of weights that another program trained, as a run."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor

from vitcli.plugins.weights.tensors import match_tensors, read_tensors
from vitcli.runner.data.find import refuse_unused_folder
from vitcli.runner.data.load import load_data
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.experiment.build import abstract_module, encoder_of
from vitcli.runner.experiment.config import STATISTICS, Experiment, config_hash, flatten, model_hash
from vitcli.runner.experiment.resolve import describe_spec, resolve
from vitcli.runner.files import make_folder, make_output_folder
from vitcli.runner.run.checkpoint import Checkpoint, keep_weights, save_checkpoint
from vitcli.runner.run.folder import CONFIG, RunDir, is_effectively_empty
from vitcli.runner.run.record import read_record
from vitcli.runner.text import natural_key
from vitcli.version import __version__

UNRECORDED = ("model.num_heads", "model.norm_eps", "data.mean", "data.std")
"""Settings that change a model's output, but not its tensors."""
NATURAL = "natural"
MAX_CLASSES = 4


def import_weights(
    file: Path,
    experiment: Experiment,
    output: Path,
    *,
    data_dir: Path | None = None,
    offline: bool = False,
    class_order: str | None = None,
    on_message: Callable[[str], None],
) -> RunDir:
    """Write weights as a finished run; the tensors are compared before any image is read."""
    run = RunDir(output)
    was_killed = not (output / CONFIG).exists() and bool(read_record(run).imported)
    is_free = was_killed or (output.is_dir() and is_effectively_empty(output))
    if output.exists() and not is_free:
        raise ConfigError(f"{output} already holds files; choose another --name or -o")
    refuse_unused_folder(experiment.spec.data.name, data_dir)
    described = describe_spec(experiment.spec)
    module = abstract_module(described)
    model = encoder_of(described, module)
    if model is not module:
        raise ConfigError(
            f"{experiment.name} trains more than an image model (task"
            f" {described.task.name!r}); name an experiment of the task 'classify'"
        )
    weights = match_tensors(read_tensors(file), model, file)
    stated = stated_settings(file)
    own = experiment.spec.data
    statistics = {name: getattr(own, name) or stated.get(f"data.{name}") for name in STATISTICS}
    try:
        fitted = own.replace(resize=described.data.resize, **statistics)
    except ValueError as error:
        raise InputError(f"{file}: mean or std in its metadata is damaged") from error
    experiment = replace(experiment, spec=experiment.spec.replace(data=fitted))
    data = load_data(
        experiment.spec.data,
        data_dir=data_dir,
        offline=offline,
        extras=experiment.spec.task.extras,
        seed=experiment.spec.seed,
        on_message=on_message,
    )
    spec = resolve(experiment.spec, data)
    order_classes(
        weights, spec.data.class_names or (), stated.get("classes"), class_order, on_message
    )
    values = flatten(spec.model_dump(mode="json"))
    used = [f"{k}={values[k]}" for k in UNRECORDED if k in values and stated.get(k) != values[k]]
    if used:
        on_message(
            "note: the weights file does not state these settings, or states others; those of the"
            f" experiment are used: {', '.join(used)}"
        )
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
    make_output_folder(run.path)
    with run.lock():
        make_folder(run.checkpoints)
        run.set_meta(meta)
        state = {"weights": "model", "model": model_hash(spec.model)}
        tensors = {f"model.{name}": tensor for name, tensor in weights.items()}
        save_checkpoint(run.checkpoints, Checkpoint(0, tensors, state))
        keep_weights(run.checkpoints)
        run.set_status("finished", 0, "imported")
        run.create(spec)  # config.yaml, which makes the folder a run, is written last
    return run


def stated_settings(file: Path) -> dict[str, Any]:
    """Return those of ``UNRECORDED`` that an export of vitcli states, and its classes, if any."""
    if file.suffix != ".safetensors":
        return {}
    with safe_open(file, framework="pt") as content:
        metadata = content.metadata() or {}
    if "vitcli" not in metadata:
        return {}
    try:
        model = json.loads(metadata["model"])
        stated = {f"model.{name}": value for name, value in model.items()}
        stated |= {f"data.{name}": json.loads(metadata[name]) for name in STATISTICS}
        classes = json.loads(metadata.get("class_names", "null"))
        return stated | {"classes": classes and [*map(str, classes)]}
    except (LookupError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"{file}: its metadata is not that of an export of vitcli") from error


def order_classes(
    weights: dict[str, Tensor],
    names: Sequence[str],
    stated: Sequence[str] | None,
    order: str | None,
    on_message: Callable[[str], None],
) -> None:
    """Bring the rows of a head from ``order``, or that of ``stated``, into the order of ``names``.

    ``order`` is ``natural``, or all names with commas between them. A note says where no order is
    known.
    """
    natural = sorted(names, key=lambda name: natural_key(name.lower()))  # of timm, for folders
    theirs = [*(stated or names)]
    if order is not None:
        theirs = natural if order == NATURAL else [name.strip() for name in order.split(",")]
        if sorted(theirs) != sorted(names):
            raise ConfigError(
                f"--class-order takes {NATURAL!r}, or each of these once: {','.join(names)}"
            )
    elif sorted(theirs) != sorted(names) or (not stated and [*names] == sorted(names) != natural):
        on_message(
            f"note: the head's classes are taken in the order {', '.join(names[:MAX_CLASSES])},"
            f" ..., the file may have {', '.join((stated or natural)[:MAX_CLASSES])}, ...; if so,"
            f" add --class-order (timm's is {NATURAL})"
        )
        return
    rows = [theirs.index(name) for name in names]
    for name, tensor in weights.items():
        if name.startswith("head.") and len(tensor) == len(names):
            weights[name] = tensor[rows]
