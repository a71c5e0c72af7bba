"""Weights that a model of the family timm starts from."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vitcli.core.models.image_model import ImageModel, build_model
from vitcli.core.spec import DataSpec, ExperimentSpec
from vitcli.plugins.timm.fit import PREFIX, timm_config
from vitcli.plugins.timm.model import TimmModel, create_net
from vitcli.plugins.timm.spec import TimmSpec
from vitcli.plugins.weights.tensors import prefix_of, read_tensors
from vitcli.runner.data.find import is_offline
from vitcli.runner.errors import InputError
from vitcli.runner.evaluate.weights import Listener, PublishedWeights, encoder_weights
from vitcli.runner.run.folder import RunDir
from vitcli.runner.text import ignore_message, one_line, quantity

NET = TimmModel.library_prefix
HUB_FILE = "model.safetensors"


def first_file(spec: ExperimentSpec, offline: bool, on_message: Listener) -> Path | None:
    """Return the file that a model of timm starts from; None for a run or random weights."""
    model, init = spec.model, spec.train.init
    if not isinstance(model, TimmSpec):
        return None
    if init:
        return Path(init) if Path(init).is_file() else None
    return hub_file(model.name or "", offline, on_message) if model.pretrained else None


def hub_file(name: str, offline: bool, on_message: Listener) -> Path:
    """Return timm's published weights: the copy in the cache of the Hub, or a download."""
    from huggingface_hub import (
        get_hf_file_metadata,
        hf_hub_download,
        hf_hub_url,
        try_to_load_from_cache,
    )

    config = timm_config(name)
    place = config and config.hf_hub_id
    to_type = "a training takes a local file, too: --init FILE"
    if not place:
        raise InputError(f"{PREFIX}{name} has no weights on the Hugging Face Hub; {to_type}")
    hub_name = config.hf_hub_filename or HUB_FILE
    cached = try_to_load_from_cache(place, hub_name)
    if isinstance(cached, str):
        return Path(cached)
    if is_offline(offline):
        raise InputError(f"{PREFIX}{name}: its weights are not on this computer; {to_type}")
    try:
        url = hf_hub_url(place, hub_name)
        size = get_hf_file_metadata(url).size or 0
        on_message(f"downloading {url} ({size:,} bytes) into the cache of huggingface_hub")
        return Path(hf_hub_download(place, hub_name))
    except Exception as error:  # its HTTP library, and so its errors, differ between releases
        reason = one_line(str(error).strip().partition("\n")[0], 200)
        raise InputError(
            f"{PREFIX}{name}: its weights cannot be downloaded ({reason}); {to_type}"
        ) from error


def load_timm(
    model: ImageModel, source: RunDir | Path, on_message: Listener, class_names: Sequence[str]
) -> None:
    """Copy the weights of a run or file, which timm renames and resizes as it does for its own.

    The model keeps its own head if the source has another number of classes, or no head, or if the
    classes of a run have other names.
    """
    assert isinstance(model, TimmModel)
    config, name = timm_config(model.spec.name or ""), f"{PREFIX}{model.spec.name}"
    own = model.state_dict()
    if isinstance(source, RunDir):
        found, prefix, source_name = (
            encoder_weights(source, on_message=on_message),
            NET,
            source.name,
        )
    else:
        found, source_name = read_tensors(source), str(source)
        prefix = prefix_of(found, {key.removeprefix(NET) for key in own}, source)
    tensors = {k.removeprefix(prefix): v for k, v in found.items() if k.startswith(prefix)}
    heads = (key.removeprefix(NET) for key in model.head_names if key.endswith(".weight"))
    sizes = [len(tensors[key]) for key in heads if key in tensors and tensors[key].ndim]
    problem: ValueError | None = None
    for count in dict.fromkeys([*sizes, config.num_classes if config else 0, 0]):
        head: dict[str, Any] = {"num_classes": count}
        head["pretrained_cfg_overlay"] = head | {"state_dict": dict(tensors)}
        try:
            theirs = create_net(model.spec, pretrained=True, **head).state_dict()
            break
        except ValueError as error:
            problem = problem or error
    else:
        raise InputError(f"{source_name} is not {name}: {problem}")
    state = {NET + key: tensor for key, tensor in theirs.items()}
    differs = {k for k in own if k not in state or state[k].shape != own[k].shape}
    stated = source.spec().data.class_names if isinstance(source, RunDir) else None
    if class_names and stated and [*stated] != [*class_names]:
        differs |= model.head_names
    if differs - model.head_names:
        raise InputError(f"{source_name} is not {name}: {min(differs - model.head_names)} differs")
    if not all(tensor.isfinite().all() for tensor in state.values()):
        raise InputError(f"{source_name} has values that are not finite")
    model.load_state_dict(own | {k: state[k] for k in own if k not in differs})
    new = f"; the head for {quantity(model.num_classes, 'class')} is new" if differs else ""
    on_message(f"weights: {source_name}, read as {name}{new}")


def published_model(
    name: str, offline: bool, on_message: Listener
) -> tuple[ExperimentSpec, ImageModel]:
    """Return timm's published weights as a model; it classifies if timm names its classes."""
    from timm.data import ImageNetInfo, infer_imagenet_subset

    file = hub_file(name, offline, on_message)
    config = timm_config(name)
    channels, *size = config.input_size
    count = config.num_classes or 1
    subset = infer_imagenet_subset({"num_classes": count})
    names = tuple(ImageNetInfo(subset).label_descriptions()) if subset else None
    shape = {"img_size": tuple(size), "in_chans": channels, "num_classes": count}
    data = DataSpec(mean=tuple(config.mean), std=tuple(config.std), class_names=names)
    spec = ExperimentSpec(model=TimmSpec(name=name, **shape), data=data)
    model = build_model(spec.model, seed=0).eval()
    load_timm(model, file, ignore_message, ())
    on_message(f"model {PREFIX}{name}")
    return spec, model


WEIGHTS = PublishedWeights(first_file=first_file, load=load_timm, model=published_model)
