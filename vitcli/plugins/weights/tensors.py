"""The tensors of a weights file, under the names of vitcli or those of timm, and a run of them.

A file may be hostile. Axes of tensors: C channels, P patch_size, N tokens, D embed_dim.
"""

import argparse
import json
import re
import time
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import safe_open
from torch import Tensor, nn

from vitcli.core.models.image_model import ImageModel
from vitcli.core.models.vit import VisionTransformer
from vitcli.core.spec import ModelSpec, VitSpec
from vitcli.core.spec.data import READ_FIELDS
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
from vitcli.runner.text import Listener, natural_key, one_line
from vitcli.runner.train.initial import NO_TENSORS
from vitcli.version import __version__

AVERAGED = re.compile(r"(^|[._])(ema|swa|(?<!exp_)avg|averaged?|teacher)([._]|$)", re.IGNORECASE)
"""The names of averaged weights, the teacher of a student among them."""
MAX_DEPTH = 4
SAVE = "torch.save(model.state_dict(), 'weights.pt')"


def read_tensors(file: Path) -> dict[str, Tensor]:
    """Return the tensors in a file under their names, those of a checkpoint behind its keys."""
    if not file.is_file():
        raise InputError(f"{file}: not a file")
    try:
        if file.suffix == ".safetensors":
            saved: Any = safetensors.torch.load_file(file)
        else:
            holders = torch.serialization.safe_globals([argparse.Namespace])  # of options
            with holders, warnings.catch_warnings(action="ignore"):
                saved = torch.load(file, map_location="cpu", weights_only=True)
        tensors = find_tensors(saved)
    except Exception as error:  # a damaged file raises errors of every type
        kind = type(error).__name__
        reason = one_line(str(error).partition("\n")[0] or kind, 200)
        if kind == "UnpicklingError":  # torch's text advises to read it without restriction
            reason = f"it holds no weights, or more than weights; save them: {SAVE}"
        raise InputError(f"{file}: cannot be read as weights: {reason}") from error
    if not tensors:
        raise InputError(f"{file}: holds no dict of tensors; save the weights: {SAVE}")
    if any(tensor.layout != torch.strided or tensor.is_meta for tensor in tensors.values()):
        raise InputError(f"{file}: holds tensors that are not dense; save them dense")
    return tensors


def find_tensors(saved: Any, depth: int = 0) -> dict[str, Tensor]:
    """Return the tensors in nested mappings under their keys with points between, ``ema.norm``."""
    tensors = {}
    for key, value in saved.items() if isinstance(saved, Mapping) and depth < MAX_DEPTH else ():
        if isinstance(value, Tensor):
            tensors[str(key)] = value
        inside = find_tensors(value, depth + 1)
        tensors |= {f"{key}.{name}": tensor for name, tensor in inside.items()}
    return tensors


TIMM = (
    ("patch_embed.proj.", "patch_embed.0.proj."),
    ("pos_embed", "pos_embed.table"),
    ("reg_token", "reg_tokens"),
    (".attn.", ".attn.inner."),
    (".mlp.", ".ffn.inner."),
    (".norm1.", ".attn.norm."),
    (".norm2.", ".ffn.norm."),
    (".ls1.", ".attn.after.0."),
    (".ls2.", ".ffn.after.0."),
)
"""Parts of names in timm's VisionTransformer and in vitcli; replaced from the last to the first."""
PATCHES = "patch_embed.0.proj.weight"
POSITIONS = "pos_embed.table"
NORM_LAYERS = {"layer_norm": None, "rms_norm": "rmsnorm"}
"""Row of ``NORMS`` -> timm's name of the norm; None is timm's default."""
PLAIN: dict[str, tuple[Any, ...]] = {
    "patch_embed": ("linear", "conv"),
    "patch_pre_norm": (False,),
    "patch_post_norm": (False,),
    "pos_embed": ("learned", "none", "sincos1d", "sincos2d"),
    "attention": ("softmax",),
    "attn_scale": ("head_dim",),
    "attn_clamp": (False,),
    "attn_mask_diagonal": (False,),
    "attn_proj": (True,),
    "proj_bias": (True,),
    "ffn": ("gelu", "relu"),
    "norm": tuple(NORM_LAYERS),
    "norm_eps": (1e-6,),
    "norm_position": ("pre",),
    "residual": ("add",),
    "pool": ("cls", "mean"),
    "head": ("linear",),
}
"""Field of a ViT -> the values that timm's ``VisionTransformer`` can have under a plain name."""
MAX_PROBLEMS = 3


def timm_name(name: str) -> str:
    for theirs, ours in reversed(TIMM):
        name = name.replace(ours, theirs)
    return name


def match_tensors(
    tensors: Mapping[str, Tensor], model: ImageModel, file: str | Path, on_message: Listener
) -> dict[str, Tensor]:
    """Return a file's tensors with the names, types and shapes of a model's state dict.

    The names are those of timm or of vitcli, perhaps with a prefix. The patch embedding may be a
    convolution in one and the equivalent matrix in the other.
    """
    wanted = model.state_dict()
    ours = {timm_name(name): name for name in wanted} | {name: name for name in wanted}
    prefix = prefix_of(tensors, ours, file, on_message)
    inside = {name.removeprefix(prefix): name for name in tensors if name.startswith(prefix)}
    labels = {ours.get(inner, inner): name for inner, name in inside.items()}
    problems = [f"{labels[k]} has no place in the model" for k in labels if k not in wanted]
    shown = timm_name if isinstance(model, VisionTransformer) else str
    problems += [f"{shown(name)} is missing" for name in wanted if name not in labels]
    made = {}
    for name, label in labels.items() if not problems else ():
        new, old = tensors[label], wanted[name]
        is_same = name == PATCHES and new.shape[:1] == old.shape[:1] and new.numel() == old.numel()
        if new.shape != old.shape and not is_same:
            problems.append(f"{label} is {(*new.shape,)}, the model needs {(*old.shape,)}")
        elif old.is_floating_point() and not new.is_floating_point():
            problems.append(f"{label} has numbers of the type {new.dtype}")
        elif not new.to(old.dtype).isfinite().all():
            problems.append(f"{label} has values that are not finite")
        else:
            made[name] = new.to(old.dtype).reshape(old.shape)
    if problems:
        text = one_line("; ".join(problems[:MAX_PROBLEMS]), 400)
        more = f" and {len(problems) - MAX_PROBLEMS} more" if problems[MAX_PROBLEMS:] else ""
        raise InputError(f"{file} does not fit the model: {text}{more}")
    return made


def prefix_of(
    names: Collection[str], known: Collection[str], file: str | Path, on_message: Listener
) -> str:
    """Return what precedes a model's names, such as ``module.``; averaged weights come first."""
    counts: Counter[str] = Counter()
    for name in names:
        parts = name.split(".")
        counts.update(
            ".".join([*parts[:i], ""]) for i in range(len(parts)) if ".".join(parts[i:]) in known
        )
    most = max(counts.values(), default=0)
    averaged = [x for x, count in counts.items() if AVERAGED.search(x) and 2 * count > most]
    models = averaged + [x for x, count in counts.items() if count == most and x not in averaged]
    if len(models) > 1:
        first, *others = (one_line(f"{prefix}*", 100) for prefix in models)
        left = one_line(", ".join(others), 400)
        if len(averaged) != 1:
            raise InputError(
                f"{file} holds several models ({first}, {left}); save one of them alone"
            )
        on_message(f"note: {file} holds several models: {first} is read, {left} is left out")
    return models[0] if models else ""


def not_plain(spec: ModelSpec) -> str | None:
    """Return the field that timm's ``VisionTransformer`` lacks, or None for a plain ViT."""
    if not isinstance(spec, VitSpec):
        return f"model.family={spec.family}"
    if spec.patch_bias == spec.pre_norm:  # timm's patches have a bias, except before a norm
        return f"model.patch_bias={spec.patch_bias} with model.pre_norm={spec.pre_norm}"
    values = {name: getattr(spec, name) for name in PLAIN}
    return next((f"model.{k}={v}" for k, v in values.items() if v not in PLAIN[k]), None)


def timm_arguments(spec: VitSpec, num_classes: int) -> dict[str, Any]:
    ratio = spec.hidden_dim / spec.embed_dim
    if int(spec.embed_dim * ratio) != spec.hidden_dim:  # as timm computes the hidden width
        ratio = (spec.hidden_dim + 0.5) / spec.embed_dim
    arguments = {
        "img_size": list(spec.img_size or ()),
        "patch_size": spec.patch_size,
        "in_chans": spec.in_chans,
        "num_classes": num_classes,
        "embed_dim": spec.embed_dim,
        "depth": spec.depth,
        "num_heads": spec.num_heads,
        "mlp_ratio": ratio,
        "qkv_bias": spec.qkv_bias,
        "init_values": spec.layer_scale_init,
        "pos_embed": "none" if spec.pos_embed == "none" else "learn",
        "no_embed_class": not spec.pos_embed_prefix,
        "reg_tokens": spec.reg_tokens,
        "pre_norm": spec.pre_norm,
        "final_norm": spec.has_final_norm,
        "norm_layer": NORM_LAYERS[spec.norm],
        "act_layer": spec.ffn,
    }
    if spec.pool == "cls":
        return arguments | {"global_pool": "token"}
    return arguments | {"global_pool": "avg", "class_token": False, "fc_norm": False}


def timm_state(encoder: VisionTransformer, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a plain ViT with the names and shapes of timm.

    Patches become a convolution (D, C, P, P), and constant positions a table (1, N, D).
    """
    size = encoder.spec.patch_size
    patches = state[PATCHES].reshape(encoder.spec.embed_dim, -1, size, size)
    positions = encoder.pos_embed().detach() if encoder.pos_embed is not None else None
    changed = {PATCHES: patches} | ({} if positions is None else {POSITIONS: positions})
    return {timm_name(name): tensor.contiguous() for name, tensor in {**state, **changed}.items()}


UNRECORDED = ("model.num_heads", "model.norm_eps", "data.mean", "data.std")
"""Settings that change a model's output, but not its tensors, and that most files do not state."""
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
    weights = match_tensors(read_tensors(file), model, file, on_message)
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
    names = spec.data.class_names or ()
    last = model.head[-1] if isinstance(model.head, nn.Sequential) else model.head
    rows = {id(each) for each in last.parameters()}  # hidden layers keep their order
    head = {name: weights[name] for name, own in model.named_parameters() if id(own) in rows}
    advice = f"add --class-order (timm's is {NATURAL})"
    weights |= order_classes(head, names, stated.get("classes"), class_order, advice, on_message)
    values = flatten(spec.model_dump(mode="json"))
    known = dict.fromkeys(UNRECORDED) | stated
    used = [
        f"{name}={value}"
        for name, value in values.items()
        if known.get(name, value) != value and name.removeprefix("model.") not in NO_TENSORS
    ]
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
    """Return the settings that an export of vitcli states, and its classes, if any."""
    if file.suffix != ".safetensors":
        return {}
    with safe_open(file, framework="pt") as content:
        metadata = content.metadata() or {}
    if "vitcli" not in metadata:
        return {}
    try:
        model = dict(json.loads(metadata["model"]))
        steps = json.loads(metadata.get("preprocessing", "{}"))
        stated = flatten({"model": model})
        stated |= {f"data.{name}": steps.get(name) for name in READ_FIELDS if "fit" in steps}
        stated |= {f"data.{name}": json.loads(metadata[name]) for name in STATISTICS}
        classes = json.loads(metadata.get("class_names", "null"))
        return stated | {"classes": classes and [*map(str, classes)]}
    except (LookupError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"{file}: its metadata is not that of an export of vitcli") from error


def order_classes(
    head: Mapping[str, Tensor],
    names: Sequence[str],
    stated: Sequence[str] | None,
    order: str | None,
    advice: str,
    on_message: Callable[[str], None],
) -> Mapping[str, Tensor]:
    """Return a head with its rows brought from ``order``, or that of ``stated``, to ``names``.

    ``order`` is ``natural``, or all names with commas between them. A note with the ``advice`` says
    where no order is known.
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
            f" {advice}"
        )
        return head
    rows = [theirs.index(name) for name in names]
    return {
        name: tensor[rows] if len(tensor) == len(rows) else tensor for name, tensor in head.items()
    }
