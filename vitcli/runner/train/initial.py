"""The weights that a training starts from, if they are those of another run.

Axes: N images, F features.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitcli.core.data.batches import limit_images
from vitcli.core.data.source import DataSet
from vitcli.core.metrics.linear_probe import HELD_OUT, linear_probe
from vitcli.core.models.image_model import ImageModel
from vitcli.core.models.vit import TokenModel
from vitcli.core.nn.pos_embed import resize_positions
from vitcli.core.objectives.objective import task_class
from vitcli.core.spec import ExperimentSpec, ModelSpec
from vitcli.runner.data.find import own_path
from vitcli.runner.data.folds import folds_of_probes
from vitcli.runner.errors import ConfigError
from vitcli.runner.evaluate.teacher import teacher_run
from vitcli.runner.evaluate.weights import encoder_weights, published_weights
from vitcli.runner.experiment.build import encoder_of, filled_module
from vitcli.runner.experiment.config import SIZES
from vitcli.runner.run.folder import RunDir, find_run
from vitcli.runner.run.record import read_record
from vitcli.runner.run.split import labelled_runs, read_sides
from vitcli.runner.text import Listener

POSITIONS = "pos_embed.table"
NO_TENSORS = ("drop_path", "attn_drop", "proj_drop", "pos_drop", "init")
"""Fields of a model that change no tensor's name or shape."""


def initial_module(
    spec: ExperimentSpec, data: DataSet, first: RunDir | Path | None, on_message: Listener
) -> nn.Module:
    """Return the module to train, with the encoder of the run or file ``first`` if there is one."""
    for source in sources(spec, first):
        for note in describe_seen(source, spec, data):
            on_message(f"warning: {source.name} {note}")
    module = filled_module(spec, data)
    if first:
        encoder = encoder_of(spec, module)
        keeps_head = spec.task.row.uses_labels and spec.train.init_head != "probe"
        names = data.class_names if keeps_head else ()
        if weights := published_weights(spec.model.family):
            weights.load(encoder, first, on_message, names)
        else:
            assert isinstance(first, RunDir), "a file is only for families with published weights"
            load_initial_weights(encoder, first, on_message, names)
        for name in task_class(spec).encoder_copies:
            module.get_submodule(name).load_state_dict(encoder.state_dict())
        if spec.train.init_head == "probe":
            start_head_from_probe(spec, module, data, on_message)
    return module


def refuse_source(run: RunDir, spec: ExperimentSpec, first: RunDir | Path | None) -> None:
    if run.path.resolve() in [source.path.resolve() for source in sources(spec, first)]:
        raise ConfigError(
            f"--rerun would delete {run.path}, whose weights this training needs; choose another"
            " --name"
        )


def sources(spec: ExperimentSpec, first: RunDir | Path | None) -> list[RunDir]:
    """Return the runs that a training starts from or learns from."""
    sources = [first] if isinstance(first, RunDir) else []
    if spec.task.taught_by:
        sources.append(find_run(teacher_run(spec)))
    return sources


def describe_seen(source: RunDir, spec: ExperimentSpec, data: DataSet) -> list[str]:
    """Return what a run, or one before it, learned of the images that this training measures."""
    parts = {"test": None if data.test is data.val else data.test, "validation": data.val}
    seen: dict[str, str] = {}
    for run in labelled_runs(source):
        if run and data.contents and (sides := read_sides(run)) is not None:
            learned = {content for content, side in sides.items() if side == "train"}
            counts = {
                k: sum(data.contents[n] in learned for n in v.names) for k, v in parts.items() if v
            }
            seen |= {k: f"{n:,} of the {len(parts[k] or ()):,} " for k, n in counts.items() if n}
            break
        record = read_record(run) if run else None
        is_other = record and own_path(record.data or "") and record.data_hash != data.data_hash
        if data.contents and (record is None or record.imported or is_other):
            old = f"an earlier version trained {run.name}" if run else ""
            reason = old or "something that it started from cannot be read"
            reason = "its weights were imported" if record and record.imported else reason
            return [
                f"does not say which pictures it learned from, because {reason}; if test pictures"
                " are among them, the test accuracy will be too high"
            ]
        if run and (split := _seen_images(run, spec, data)):
            seen[split] = ""
    return [
        f"learned from {count}{split} images of this training, so the {split} accuracy will be too"
        " high"
        for split, count in seen.items()
    ]


def _seen_images(source: RunDir, spec: ExperimentSpec, data: DataSet) -> str:
    """Return ``test`` or ``validation`` if a run was trained on such images of this training.

    The same number of validation images are the same images, because they are chosen by content.
    """
    theirs, num_theirs = source.spec(), read_record(source).num_val
    if not theirs.task.row.uses_labels or theirs.data.name != spec.data.name:
        return ""
    if spec.data.folds and (theirs.data.folds, theirs.seed) != (spec.data.folds, spec.seed):
        return "test"
    num_val = len(data.val) if data.val else 0
    known = theirs.data.val_split if num_theirs is None else num_theirs
    return "validation" if num_val and known != num_val else ""


def start_head_from_probe(
    spec: ExperimentSpec, module: nn.Module, data: DataSet, on_message: Listener
) -> None:
    """Fit a linear probe to the training images and give it to the head.

    The tuning then starts from features that the head fits, which loses less of what they know:
    Kumar et al. 2022, https://arxiv.org/abs/2202.10054. The images that choose its penalty have no
    copies and no group among the others. All of it is computed on the CPU.
    """
    head = encoder_of(spec, module).head
    if not isinstance(head, nn.Linear) or head.bias is None:
        raise ConfigError(
            "train.init_head: a probe is one linear layer; set train.init_head=random"
        )
    train, count = limit_images(data.train, spec), data.num_classes
    on_message(f"fitting a linear probe to {len(train):,} training images")
    features = task_class(spec)(spec, module).features(module, train)
    if not features.isfinite().all():
        raise ConfigError("train.init_head: a feature of the initial weights is not finite")
    fold, _ = folds_of_probes(train, data, HELD_OUT)
    held_out = None if fold is None else fold == HELD_OUT - 1
    layer = linear_probe(features, train.labels, count, held_out=held_out).layer
    with torch.no_grad():
        head.weight.copy_(layer[:-1].T)
        head.bias.copy_(layer[-1])


def load_initial_weights(
    model: ImageModel, source: RunDir, on_message: Listener, class_names: Sequence[str] = ()
) -> None:
    """Copy the weights of a run's encoder.

    The model keeps its own head if the number of the classes or their names differ. Learned
    positions are resized if the grid of patches differs. A message reports both.
    """
    weights = _fit_positions(
        encoder_weights(source, on_message=on_message), model, source, on_message
    )
    own = model.state_dict()
    # The head of a distillation token has no place in another model.
    weights = {k: v for k, v in weights.items() if k in own or not k.startswith("head_dist.")}
    differs = [k for k in own if k not in weights or weights[k].shape != own[k].shape]
    theirs = source.spec().data.class_names
    if class_names and theirs and [*theirs] != [*class_names]:
        differs += sorted(model.head_names - {*differs})
    names = [k for k in differs if k not in model.head_names]
    if names := names + sorted(weights.keys() - own.keys()):
        raise ConfigError(
            f"train.init: the weights of {source.name} do not fit: {names[0]} differs; its model:"
            f" {source.command('runs show')}"
        )
    if differs:
        classes = model.spec.num_classes
        on_message(f"starting from {source.name} with a new head ({classes} classes)")
    model.load_state_dict(weights | {k: own[k] for k in differs})


def tensor_fields(model: ModelSpec) -> dict[str, Any]:
    return model.model_dump(mode="json", exclude={*SIZES, *NO_TENSORS})


def _fit_positions(
    weights: dict[str, Tensor], model: ImageModel, source: RunDir, on_message: Listener
) -> dict[str, Tensor]:
    table, own = weights.get(POSITIONS), model.state_dict().get(POSITIONS)
    if table is None or own is None or not isinstance(model, TokenModel):
        return weights
    spec = source.spec().model
    height, width = spec.img_size or (0, 0)
    patch = spec.patch_side
    old = height // patch, width // patch
    prefix = table.shape[1] - old[0] * old[1]
    if old == model.grid_size or prefix != own.shape[1] - model.num_patches:
        return weights
    shown = " to ".join(f"{rows}x{columns}" for rows, columns in (old, model.grid_size))
    on_message(f"resizing the positions of {source.name} from {shown} patches")
    return weights | {POSITIONS: resize_positions(table, old, model.grid_size)}
