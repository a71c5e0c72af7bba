"""Comparison of the tensors in a file with those of a model.

Axes of tensors: C channels, P patch_size, N tokens, D embed_dim.
"""

from collections.abc import Collection, Mapping
from pathlib import Path

from torch import Tensor

from vitcli.core.models.image_model import ImageModel
from vitcli.core.spec import ModelSpec, PatchSpec
from vitcli.runner.errors import InputError
from vitcli.runner.text import one_line
from vitcli.runner.weights.names import Naming, naming_of
from vitcli.runner.weights.shapes import PATCHES, Shapes, describe_settings

MAX_NAMES = 3
"""Number of tensors that an error names."""
MAX_LENGTH = 60
"""Number of characters of a tensor's name that an error shows."""
NOT_IN_VITCLI = {
    "dist_token": "a distillation token",
    "fc_norm.": "a norm after the pooling (timm's fc_norm=False puts it before)",
    ".q_norm.": "norms of queries and keys",
    "attn_pool.": "pooling by attention",
}
"""Part of a name in timm -> the part of a model that no field of vitcli describes."""


def match_tensors(
    state: Mapping[str, Tensor], model: ImageModel, file: str | Path
) -> dict[str, Tensor]:
    """Return a file's tensors with the names, types and shapes of a model's state dict.

    The model may be on the device ``meta``. The patch embedding may be a convolution in one and
    the equivalent matrix in the other.
    """
    if not state:
        raise InputError(f"{file} holds no tensors")
    naming = naming_of(state)
    found = {naming.to_vitcli(name): tensor for name, tensor in state.items()}
    wanted = model.state_dict()
    if not found.keys() & wanted.keys():
        names = first_few([shown(name) for name in state])
        raise InputError(
            f"{file} does not fit the model: its names ({names}) are neither those of timm's"
            " VisionTransformer nor those of vitcli"
        )
    refuse_unknown_parts(state, file)
    shapes = {name: tuple(tensor.shape) for name, tensor in found.items()}
    if problems := find_differences(shapes, model, naming):
        hint = describe_settings(shapes, model.spec, str(file) if naming.is_timm else "")
        raise InputError(f"{file} does not fit the model: {first_few(problems, '; ')}{hint}")
    made = {}
    for name, old in wanted.items():
        tensor, told = found[name], f"{file}: {shown(naming.to_file(name))}"
        if tensor.is_complex():
            raise InputError(f"{told} has complex numbers")
        if old.is_floating_point() and not tensor.is_floating_point():
            kind = str(tensor.dtype).removeprefix("torch.")
            raise InputError(f"{told} has numbers of the type {kind}; save the weights in float32")
        made[name] = tensor.to(old.dtype).reshape(old.shape)
        if not made[name].isfinite().all():
            raise InputError(f"{told} has values that are not finite")
    return made


def refuse_unknown_parts(names: Collection[str], file: str | Path) -> None:
    """Refuse models of timm with a part that no field of vitcli describes."""
    parts = [
        f"{shown(next(name for name in names if part in name))}, {meaning}"
        for part, meaning in NOT_IN_VITCLI.items()
        if any(part in name for name in names)
    ]
    if parts:
        raise InputError(f"{file} holds parts that vitcli's models lack: {'; '.join(parts)}")


def find_differences(shapes: Shapes, model: ImageModel, naming: Naming) -> list[str]:
    """Return one text for each tensor that differs, with its name in the file."""
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if PATCHES in shapes and PATCHES in wanted:
        wanted[PATCHES] = patch_shape(len(shapes[PATCHES]), wanted[PATCHES], model.spec)
    texts = {
        name: f"is {shapes[name]}, the model needs {wanted[name]}"
        for name in wanted
        if name in shapes and shapes[name] != wanted[name]
    }
    texts |= {name: "has no place in the model" for name in shapes if name not in wanted}
    texts |= {name: "is missing" for name in wanted if name not in shapes}
    return [f"{shown(naming.to_file(name))} {text}" for name, text in texts.items()]


def patch_shape(ndim: int, shape: tuple[int, ...], spec: ModelSpec) -> tuple[int, ...]:
    """Return the shape of the patch embedding with ``ndim`` axes.

    It is (D, C, P, P) as a convolution, and (D, C P P) as a matrix.
    """
    if ndim == 4 and len(shape) == 2 and isinstance(spec, PatchSpec):
        return (shape[0], spec.in_chans or 1, spec.patch_size, spec.patch_size)
    if ndim == 2 and len(shape) == 4:
        return (shape[0], shape[1] * shape[2] * shape[3])
    return shape


def shown(name: str) -> str:
    """Return a name for a message: one line of limited length; quotes for an empty name."""
    return one_line(name, MAX_LENGTH) or repr(name)


def first_few(texts: Collection[str], separator: str = ", ") -> str:
    left = len(texts) - MAX_NAMES
    more = f" and {left} more" if left > 0 else ""
    return separator.join(list(texts)[:MAX_NAMES]) + more
