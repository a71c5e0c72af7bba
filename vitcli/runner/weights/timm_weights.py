"""Weights of a Vision Transformer of timm, from a file or from the cache of the Hugging Face Hub.

Axes of tensors: C channels, P patch_size, N tokens, D embed_dim, K classes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from vitcli.core.models.image_model import ImageModel
from vitcli.core.spec import VitSpec
from vitcli.runner.data.find import is_offline
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.experiment.family import PREFIX, require_timm, timm_config
from vitcli.runner.text import one_line
from vitcli.runner.weights.match import first_few, match_tensors, refuse_unknown_parts, shown
from vitcli.runner.weights.names import naming_of
from vitcli.runner.weights.read import read_tensors
from vitcli.runner.weights.timm_model import build_timm, vit_fields

Listener = Callable[[str], None]
HUB_FILE = "model.safetensors"
HEAD = ("head.weight", "head.bias")


@dataclass(frozen=True, kw_only=True)
class TimmWeights:
    """The weights of a file, read as those of a model of timm."""

    name: str
    """Name in timm, without ``timm:``."""
    file: Path
    tensors: Mapping[str, Tensor]
    """The tensors under their names in the file, without a common prefix."""
    fields: Mapping[str, Any]
    """The fields of ``VitSpec`` at the model's own size, without the number of classes."""
    mean: tuple[float, ...]
    std: tuple[float, ...]
    """Mean and standard deviation of each channel, as timm's configuration of the name states."""

    @property
    def num_classes(self) -> int:
        """Return the number of classes of the head in the file; 0 if there is no head."""
        shape = self.tensors["head.weight"].shape if "head.weight" in self.tensors else ()
        return shape[0] if shape else 0

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """Return timm's names of the classes of ImageNet; None for other numbers of classes."""
        from timm.data import ImageNetInfo, infer_imagenet_subset

        subset = infer_imagenet_subset({"num_classes": self.num_classes})
        return tuple(ImageNetInfo(subset).label_descriptions()) if subset else None

    def state_for(self, model: ImageModel, on_message: Listener) -> dict[str, Tensor]:
        """Return the weights as the state dict of a model, without its head if the head differs.

        timm resizes positions and patch embedding. Each resized and each dropped tensor is
        reported.
        """
        from timm.models.vision_transformer import checkpoint_filter_fn

        assert isinstance(model.spec, VitSpec)
        theirs = build_timm(
            self.name,
            img_size=model.spec.img_size,
            patch_size=model.spec.patch_size,
            num_classes=self.num_classes,
        )
        try:
            state = checkpoint_filter_fn(dict(self.tensors), theirs, adapt_layer_scale=True)
        except (RuntimeError, LookupError, ValueError) as error:
            raise InputError(
                f"{self.file} is not {PREFIX}{self.name}: timm says {error}"
            ) from error
        self.refuse_differences(state, theirs.state_dict())
        report_changes(self.tensors, state, on_message)
        head = {name: state.pop(name) for name in HEAD if name in state}
        wanted = model.num_classes
        own = model.state_dict()
        if self.num_classes == wanted:
            state |= head
        else:
            if head:
                on_message(f"dropped: {_sizes(head)}; the data set has {wanted} classes")
            state |= {name: own[name].new_zeros(own[name].shape, device="cpu") for name in HEAD}
        found = match_tensors(state, model, self.file)
        if self.num_classes != wanted:
            for name in HEAD:
                del found[name]
        return found

    def refuse_differences(self, state: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
        """Refuse tensors that are not exactly those of the model of timm."""
        refuse_unknown_parts(state, self.file)
        shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
        saved = {name: tuple(tensor.shape) for name, tensor in self.tensors.items()}
        needed = {name: tuple(tensor.shape) for name, tensor in wanted.items()}
        texts = [f"{name} is missing" for name in needed if name not in shapes]
        texts += [f"{shown(name)} has no place in it" for name in shapes if name not in needed]
        texts += [
            f"{name} is {saved.get(name, shapes[name])}, the model has {shape}"
            for name, shape in needed.items()
            if shapes.get(name, shape) != shape
        ]
        if texts:
            raise InputError(f"{self.file} is not {PREFIX}{self.name}: {first_few(texts, '; ')}")


def report_changes(
    before: Mapping[str, Tensor], after: Mapping[str, Tensor], on_message: Listener
) -> None:
    """Report each tensor of a file that timm resized or dropped.

    A tensor that timm renamed or viewed in another shape keeps its memory.
    """
    for name, tensor in after.items():
        if name in before and before[name].shape != tensor.shape:
            sizes = f"{tuple(before[name].shape)} -> {tuple(tensor.shape)}"
            on_message(f"resized: {shown(name)} {sizes}")
    kept = {tensor.data_ptr() for tensor in after.values()}
    lost = {k: v for k, v in before.items() if k not in after and v.data_ptr() not in kept}
    if lost:
        on_message(f"dropped: {_sizes(lost)}; timm does not use them")


def _sizes(tensors: Mapping[str, Tensor]) -> str:
    return ", ".join(f"{shown(name)} {tuple(tensor.shape)}" for name, tensor in tensors.items())


def find_timm(
    source: str, file: Path | None = None, *, offline: bool = False, on_message: Listener
) -> TimmWeights:
    """Return the weights of ``timm:NAME``.

    Args:
        file: The weights; by default the copy in the cache of the Hub, or a download.
    """
    require_timm()
    name = source.removeprefix(PREFIX)
    if not name:
        raise ConfigError(f"{PREFIX} needs the name of a model; is a shell variable unset?")
    if file is None:
        to_type = f"give a local file: {PREFIX}{name} --weights FILE"
        file = hub_file(name, to_type, is_offline(offline), on_message)
    tensors = read_tensors(file, on_message)
    prefix = naming_of(tensors).prefix
    tensors = {key.removeprefix(prefix): tensor for key, tensor in tensors.items()}
    model = build_timm(name)
    config = model.pretrained_cfg
    fields = vit_fields(model, name)
    on_message(
        f"weights: {file}, read as {PREFIX}{name}: mean {list(config['mean'])}, std"
        f" {list(config['std'])}"
    )
    return TimmWeights(
        name=name,
        file=file,
        tensors=tensors,
        fields=fields,
        mean=tuple(config["mean"]),
        std=tuple(config["std"]),
    )


def hub_file(name: str, to_type: str, offline: bool, on_message: Listener) -> Path:
    """Return timm's published weights: the copy in the cache of the Hub, or a download."""
    from huggingface_hub import (
        get_hf_file_metadata,
        hf_hub_download,
        hf_hub_url,
        try_to_load_from_cache,
    )

    config = timm_config(name)
    place = config and config.hf_hub_id
    if not place:
        raise InputError(f"{PREFIX}{name} has no weights on the Hugging Face Hub; {to_type}")
    hub_name = config.hf_hub_filename or HUB_FILE
    cached = try_to_load_from_cache(place, hub_name)
    if isinstance(cached, str):
        return Path(cached)
    if offline:
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


def refuse_weights_option(source: str, file: Path | None) -> None:
    """Refuse ``--weights`` without ``timm:NAME``."""
    if file is not None and not source.startswith(PREFIX):
        raise ConfigError(f"--weights {file} needs the name of a model: {PREFIX}NAME")
