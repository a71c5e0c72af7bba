"""The numbers that the explorer shows for one picture.

Axes: H W pixels of the picture, gh gw patch grid, L layers, h heads, N tokens (prefix first).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vitcli.core.inspect.maps import require_all_stated, rollouts
from vitcli.core.models.image_model import MappedModel
from vitcli.core.spec.slots import POOLS
from vitcli.runner.errors import InputError

NUM_CLASSES = 5


@dataclass(frozen=True, kw_only=True)
class Scene:
    """Picture with the model's prediction and the attention of every token."""

    name: str
    picture: np.ndarray
    """(H, W, 3) uint8, as the page shows it."""
    box: tuple[int, int, int, int]
    """The part of the picture that the model gets: top, left, height, width."""
    grid: tuple[int, int]
    prefix: tuple[str, ...]
    layers: tuple[int, ...]
    """The layers in ``attention`` and ``rollout``, counted from 1."""
    attention: np.ndarray
    """(L, h, N, N): a row is a query, a column is a key; each row sums to 1."""
    rollout: np.ndarray
    """(L, N, N): attention rollout from the input to each layer; each row sums to 1."""
    pool: str
    """The pooling before the classifier: cls, mean or seq."""
    reader: str
    reading: np.ndarray
    """(N,): the weight of each token in the pooling; sums to 1."""
    classes: tuple[tuple[str, float], ...]
    """The likeliest classes with their probabilities, likeliest first."""

    @property
    def reads_cls(self) -> bool:
        """Return whether the classifier reads CLS alone, so that a token is the read-out."""
        return POOLS[self.pool].has_cls_token and bool(self.reading[0] == 1)


@torch.no_grad()
def make_scene(
    model: MappedModel,
    images: Tensor,
    *,
    name: str,
    picture: np.ndarray,
    box: tuple[int, int, int, int],
    class_names: Sequence[str],
    temperature: float,
    layers: Sequence[int] | None = None,
) -> Scene:
    """Run the model once on its input (1, C, H, W) and return the scene; layers count from 0."""
    require_all_stated(model, images)
    logits, weights = model.forward_with_weights(images)
    chosen = range(len(model.blocks)) if layers is None else layers
    through = list(rollouts(weights.values(), residual=model.spec.has_residual))
    attention = torch.stack([weights[i][0] for i in chosen])
    if not attention.isfinite().all():
        raise InputError(f"{name}: the model's attention to this picture is not finite")
    shares, indices = (logits[0] / temperature).softmax(-1).topk(min(NUM_CLASSES, len(class_names)))
    best = zip(indices.tolist(), shares.tolist(), strict=True)
    reader = POOLS[model.pool_name].reads
    if model.second_reader is not None:
        first = "CLS" if model.cls_token is not None else reader.removeprefix("read-out, ")
        reader = f"read-out, half {first}, half the {model.second_reader} token"
    return Scene(
        name=name,
        picture=picture,
        box=box,
        grid=model.grid_size,
        prefix=prefix_names(model),
        layers=tuple(i + 1 for i in chosen),
        attention=as_array(attention),
        rollout=as_array(torch.stack([through[i][0] for i in chosen])),
        pool=model.pool_name,
        reader=reader,
        reading=as_array(model.pool_weights(images)[0]),
        classes=tuple((class_names[i], share) for i, share in best),
    )


def prefix_names(model: MappedModel) -> tuple[str, ...]:
    """Return the names of the prefix tokens: ``CLS``, ``register 1`` and so on."""
    read = [name for name in (model.cls_token is not None and "CLS", model.second_reader) if name]
    registers = range(1, model.num_prefix_tokens - len(read) + 1)
    return (*read, *(f"register {number}" for number in registers))


def as_array(tensor: Tensor) -> np.ndarray:
    return np.asarray(tensor.float().cpu())
