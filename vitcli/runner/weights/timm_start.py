"""Weights that a model of the family timm starts from."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from vitcli.core.models.timm_model import TimmModel, create_net
from vitcli.core.spec import ExperimentSpec, TimmSpec
from vitcli.runner.data.find import is_offline
from vitcli.runner.errors import InputError
from vitcli.runner.evaluate.weights import encoder_weights
from vitcli.runner.experiment.family import PREFIX, timm_config
from vitcli.runner.run.folder import RunDir
from vitcli.runner.text import quantity
from vitcli.runner.weights.names import naming_of
from vitcli.runner.weights.read import read_tensors
from vitcli.runner.weights.timm_weights import hub_file

Listener = Callable[[str], None]
NET = "net."
"""What the names of tensors of a ``TimmModel`` begin with."""


def first_file(spec: ExperimentSpec, offline: bool, on_message: Listener) -> Path | None:
    """Return the weights file that a model of timm starts from; None for a run or random."""
    model, init = spec.model, spec.train.init
    if not isinstance(model, TimmSpec):
        return None
    if init:
        return Path(init) if Path(init).is_file() else None
    if not model.pretrained:
        return None
    to_type = "give a local file: --init FILE"
    return hub_file(model.name or "", to_type, is_offline(offline), on_message)


def load_timm(
    model: TimmModel,
    source: RunDir | Path,
    on_message: Listener,
    class_names: Sequence[str] = (),
) -> None:
    """Copy the weights of a run or file, which timm renames and resizes as it does for its own.

    The model keeps its own head if the source has another number of classes, or no head, or if the
    classes of a run have other names.
    """
    config, name = timm_config(model.spec.name or ""), f"{PREFIX}{model.spec.name}"
    if isinstance(source, RunDir):
        found, prefix, source_name = encoder_weights(source), NET, source.name
    else:
        found, source_name = read_tensors(source, on_message), str(source)
        prefix = naming_of(found).prefix
    tensors = {key.removeprefix(prefix): tensor for key, tensor in found.items()}
    heads = (key.removeprefix(NET) for key in model.head_names if key.endswith(".weight"))
    sizes = [len(tensors[key]) for key in heads if key in tensors]
    problem: ValueError | None = None
    for count in dict.fromkeys([*sizes, config.num_classes if config else 0, 0]):
        overlay = {"state_dict": dict(tensors), "num_classes": count}
        options: dict[str, Any] = {
            "pretrained": True,
            "pretrained_cfg_overlay": overlay,
            "num_classes": count,
        }
        try:
            theirs = create_net(model.spec, **options).state_dict()
            break
        except ValueError as error:
            problem = problem or error
    else:
        raise InputError(f"{source_name} is not {name}: {problem}")
    own, state = model.state_dict(), {NET + key: tensor for key, tensor in theirs.items()}
    differs = {k for k in own if k not in state or state[k].shape != own[k].shape}
    stated = source.spec().data.class_names if isinstance(source, RunDir) else None
    if class_names and stated and [*stated] != [*class_names]:
        differs |= model.head_names
    if differs - model.head_names:
        raise InputError(f"{source_name} is not {name}: {min(differs - model.head_names)} differs")
    if not all(tensor.isfinite().all() for tensor in state.values()):
        raise InputError(f"{source_name} has values that are not finite")
    model.load_state_dict(own | {k: state[k] for k in own if k not in differs})
    head = f"; the head for {quantity(model.num_classes, 'class')} is new" if differs else ""
    on_message(f"weights: {source_name}, read as {name}{head}")
