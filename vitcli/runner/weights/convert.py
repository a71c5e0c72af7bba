"""Import of weights that another program trained, as a run."""

import json
import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from vitcli.core.data.source import DataSet
from vitcli.core.models.image_model import ImageModel
from vitcli.core.spec import DataSpec, ExperimentSpec, VitSpec
from vitcli.runner.data.find import refuse_unused_folder
from vitcli.runner.data.load import load_data
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.experiment.build import abstract_module, encoder_of, new_module
from vitcli.runner.experiment.config import (
    STATISTICS,
    Experiment,
    config_hash,
    flatten,
    model_hash,
)
from vitcli.runner.experiment.family import PREFIX
from vitcli.runner.experiment.resolve import describe_spec, resolve
from vitcli.runner.files import commit_json, make_folder, make_output_folder, unwind_on_signals
from vitcli.runner.run.checkpoint import Checkpoint, keep_weights, save_checkpoint
from vitcli.runner.run.folder import RunDir, is_effectively_empty
from vitcli.runner.run.listing import delete_run_files, remove_empty_folders
from vitcli.runner.weights.class_order import fit_class_order, fit_stated_classes
from vitcli.runner.weights.match import match_tensors
from vitcli.runner.weights.read import read_metadata, read_tensors
from vitcli.runner.weights.timm_weights import HEAD, TimmWeights
from vitcli.version import __version__

OWN_FIELDS = ("patch_size", "drop_path", "attn_drop", "proj_drop", "pos_drop")
"""Fields of a model that the experiment decides, also for weights of timm."""

FINE_TUNING = ("-s", "optim.name=adamw", "--lr", "3e-4")
"""Settings that keep most of what trained weights know, unlike a recipe for initial weights."""

UNRECORDED = ("model.num_heads", "model.norm_eps", "data.mean", "data.std")
"""Settings that change a model's output, but not its tensors."""


@dataclass(frozen=True, kw_only=True)
class Imported:
    """A run that was made from weights."""

    run: RunDir
    has_new_head: bool = False
    """Whether the head has initial weights, because the file has no head for these classes."""


def import_weights(
    file: Path,
    experiment: Experiment,
    output: Path,
    *,
    theirs: TimmWeights | None = None,
    data_dir: Path | None = None,
    offline: bool = False,
    class_order: str | None = None,
    on_message: Callable[[str], None],
) -> Imported:
    """Write the weights in a file as a finished run of an experiment, without training.

    A ``.safetensors`` file is read in this process. Every other file is read by a child process
    with limits. The tensors are compared with the model before any image is read. The run folder is
    written only if every tensor fits the model.

    With ``theirs``, the weights of ``file`` are those of a model of timm. Then timm says what the
    model is, and resizes it to the experiment's pictures and patches. ``class_order`` is the order
    of the classes in the head: see ``fit_class_order``.
    """
    run = RunDir(output)
    if output.exists() and not (output.is_dir() and _is_free(run)):
        raise ConfigError(f"{output} already holds files; choose another --name or -o")
    refuse_unused_folder(experiment.spec.data.name, data_dir)
    if theirs:
        experiment = as_timm(experiment, theirs)
    described = describe_spec(experiment.spec)
    sized = experiment.spec.data.replace(resize=described.data.resize)
    experiment = replace(experiment, spec=experiment.spec.replace(data=sized))
    model = image_model_of(described, experiment.name)
    stated: dict[str, Any] = {}
    if theirs:
        weights = theirs.state_for(model, on_message)
    else:
        weights = match_tensors(read_tensors(file, on_message), model, file)
        stated = stated_settings(file)
        experiment = normalize_as(experiment, stated, file)
    data = load_data(
        experiment.spec.data,
        data_dir=data_dir,
        offline=offline,
        extras=experiment.spec.task.extras,
        seed=experiment.spec.seed,
        on_message=on_message,
    )
    spec = resolve(experiment.spec, data)
    has_new_head = add_new_head(weights, model, spec, on_message)
    names = () if has_new_head else spec.data.class_names or ()
    classes = stated.pop("data.class_names", ())
    if stated and class_order is None:
        fit_stated_classes(weights, names, classes or names, on_message)
    else:
        fit_class_order(weights, names, class_order, on_message)
    whose = f"{PREFIX}{theirs.name}" if theirs else "the experiment"
    report_settings(spec, stated, whose, on_message)
    meta = _metadata(experiment, spec, data, file, theirs)
    write_run(run, spec, weights, meta | ({"new_head": True} if has_new_head else {}))
    return Imported(run=run, has_new_head=has_new_head)


def import_timm(theirs: TimmWeights, output: Path, on_message: Callable[[str], None]) -> RunDir:
    """Write weights of timm as a finished run of their own model, without a data set.

    A run that is there already is returned as it is.
    """
    run, count = RunDir(output), theirs.num_classes or 1
    if run.exists and run.read("meta.json").get("timm") == theirs.name:
        return run
    data = DataSpec(mean=theirs.mean, std=theirs.std, class_names=theirs.class_names)
    spec = ExperimentSpec(model=VitSpec(**theirs.fields, num_classes=count), data=data)
    model = image_model_of(spec, theirs.name)
    weights = theirs.state_for(model, on_message)
    if not theirs.num_classes:
        weights |= {name: new_module(spec).state_dict()[name] for name in HEAD}
    meta = {"imported": theirs.file.name, "timm": theirs.name, "vitcli": __version__}
    write_run(run, spec, weights, meta | ({} if theirs.num_classes else {"new_head": True}))
    return run


def _metadata(
    experiment: Experiment,
    spec: ExperimentSpec,
    data: DataSet,
    file: Path,
    theirs: TimmWeights | None,
) -> dict[str, Any]:
    """Return the content of meta.json of an imported run."""
    return {
        "experiment": experiment.name,
        "config_hash": config_hash(experiment.spec),
        "data": data.name,
        "data_hash": data.data_hash,
        "imported": file.name,
        **({"timm": theirs.name} if theirs else {}),
        "vitcli": __version__,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "seed": spec.seed,
    }


def tuning_command(run: RunDir, data_dir: Path | None = None) -> str:
    config, name = str(run.path / "config.yaml"), f"{run.path.name}-tuned"
    words = ["vitcli", "train", config, "--name", name, *FINE_TUNING, "--init", run.name]
    return shlex.join(words + (["--data-dir", str(data_dir)] if data_dir else []))


def image_model_of(spec: ExperimentSpec, name: str) -> ImageModel:
    """Return the model of an experiment without its tensors, on the device ``meta``."""
    module = abstract_module(spec)
    model = encoder_of(spec, module)
    if model is not module:
        raise ConfigError(
            f"{name} trains more than an image model (task {spec.task.name!r}); name an"
            " experiment of the task 'classify'"
        )
    return model


def write_run(
    run: RunDir, spec: ExperimentSpec, weights: Mapping[str, Tensor], meta: Mapping[str, Any]
) -> None:
    """Write the folder of a finished run with these weights, or nothing.

    config.yaml, which makes the folder a run, is written last.
    """
    make_output_folder(run.path)
    with run.lock():
        if not _is_free(run):
            name = f"{run.path} now holds files of another process"
            raise ConfigError(f"{name}; choose another --name")
        try:
            with unwind_on_signals():
                _write_files(run, spec, weights, meta)
        except BaseException:
            delete_run_files(run.path)
            remove_empty_folders(run.path)
            raise


def _write_files(
    run: RunDir, spec: ExperimentSpec, weights: Mapping[str, Tensor], meta: Mapping[str, Any]
) -> None:
    make_folder(run.checkpoints)
    commit_json(run.path / "meta.json", meta)
    checkpoint_state = {"weights": "model", "model": model_hash(spec.model)}
    tensors = {f"model.{name}": tensor for name, tensor in weights.items()}
    save_checkpoint(run.checkpoints, Checkpoint(0, tensors, checkpoint_state))
    keep_weights(run.checkpoints)
    run.set_status("finished", 0, "imported")
    run.create(spec)


def _is_free(run: RunDir) -> bool:
    was_killed = not run.exists and "imported" in run.read("meta.json")
    return was_killed or is_effectively_empty(run.path)


def as_timm(experiment: Experiment, theirs: TimmWeights) -> Experiment:
    """Return an experiment whose model and normalisation are those of a model of timm.

    The experiment decides ``OWN_FIELDS`` and the size of the pictures.
    """
    spec, fields = experiment.spec, dict(theirs.fields)
    if not isinstance(spec.model, VitSpec):
        raise ConfigError(
            f"{experiment.name} has the family {spec.model.family!r}, and {PREFIX}{theirs.name}"
            " is a 'vit'; name an experiment of a ViT, such as cifar10-tiny"
        )
    for name in ("img_size", "in_chans"):
        del fields[name]
    fields |= {name: getattr(spec.model, name) for name in OWN_FIELDS if hasattr(spec.model, name)}
    model = VitSpec(**fields)
    for name in experiment.typed:
        group, _, field = name.partition(".")
        if group == "model" and getattr(model, field, None) != getattr(spec.model, field):
            raise ConfigError(
                f"-s {name}={getattr(spec.model, field)}: {PREFIX}{theirs.name} has"
                f" {getattr(model, field, None)}; leave it out"
            )
    data = spec.data.replace(mean=spec.data.mean or theirs.mean, std=spec.data.std or theirs.std)
    return replace(experiment, spec=spec.replace(model=model, data=data))


def stated_settings(file: Path) -> dict[str, Any]:
    """Return those of ``UNRECORDED`` that an export of vitcli states, and its classes.

    It is {} for other files.
    """
    metadata = read_metadata(file)
    if "vitcli" not in metadata:
        return {}
    try:
        model = json.loads(metadata["model"])
        values = {f"model.{name}": value for name, value in model.items()}
        values |= {f"data.{name}": json.loads(metadata[name]) for name in STATISTICS}
        classes = tuple(map(str, json.loads(metadata.get("class_names", "null")) or ()))
        for name in ("num_heads", "norm_eps"):
            float(model.get(name, 0))
    except (LookupError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"{file}: its metadata is not that of an export of vitcli") from error
    found = {name: values[name] for name in UNRECORDED if name in values}
    return found | ({"data.class_names": classes} if classes else {})


def normalize_as(experiment: Experiment, stated: Mapping[str, Any], file: Path) -> Experiment:
    """Return an experiment with the mean and std of a file, unless it has its own."""
    data = experiment.spec.data
    given = {name: stated.get(f"data.{name}") for name in STATISTICS}
    values = {name: getattr(data, name) or value for name, value in given.items()}
    try:
        data.replace(**given)  # checks values that are not used, too
        spec = experiment.spec.replace(data=data.replace(**values))
    except ValueError as error:
        raise InputError(f"{file}: mean or std in its metadata is damaged") from error
    return replace(experiment, spec=spec)


def add_new_head(
    weights: dict[str, Tensor],
    model: ImageModel,
    spec: ExperimentSpec,
    on_message: Callable[[str], None],
) -> bool:
    """Add the experiment's initial head to weights without a head, and say so.

    Returns:
        Whether the weights had no head.
    """
    if not model.state_dict().keys() - weights.keys():
        return False
    fresh = encoder_of(spec, new_module(spec)).state_dict()
    weights |= {name: fresh[name] for name in HEAD}
    on_message(
        f"note: the head for {spec.model.num_classes} classes is new: it has the initial weights of"
        f" seed {spec.seed}. Train it before you read an accuracy."
    )
    return True


def report_settings(
    spec: ExperimentSpec,
    stated: Mapping[str, Any],
    whose: str,
    on_message: Callable[[str], None],
) -> None:
    """Report the values of ``UNRECORDED`` that the file does not state, or that differ from it."""
    values = flatten(spec.model_dump(mode="json"))
    used = {name: values[name] for name in UNRECORDED if name in values}
    missing = [f"{name}={_rounded(value)}" for name, value in used.items() if name not in stated]
    other = [
        f"{name}={_rounded(value)} (file: {_rounded(stated[name])})"
        for name, value in used.items()
        if name in stated and stated[name] != value
    ]
    if missing:
        on_message(
            f"note: the weights file does not state these settings; values from {whose} are used:"
            f" {', '.join(missing)}"
        )
    if other:
        on_message(
            f"note: the weights file states other values; values from {whose} are used:"
            f" {', '.join(other)}"
        )


def _rounded(value: Any) -> Any:
    return [round(part, 4) for part in value] if isinstance(value, list) else value
