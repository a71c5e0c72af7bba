"""Topic ``patches``: how an image becomes a sequence.

Axes: C channels, P patch_size, N patches, D embed_dim.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitcli.core.inspect.random_tensors import normal
from vitcli.core.nn.patch_embed import ConvPatches, LinearPatches, patchify
from vitcli.core.spec.slots import PATCH_EMBEDS
from vitcli.runner.explain.drawings import photo, strip
from vitcli.runner.explain.lesson import Shown
from vitcli.runner.explain.subject import Subject

SIZES = (1, 2, 4, 8, 16, 32)
NUM_SHOWN = 16
"""Number of patches in the drawing of the sequence."""


def projection(subject: Subject) -> tuple[Tensor, Tensor | None, bool]:
    """Return a projection of flattened patches, (D, C P P) and (D,) or None.

    The third value is True if the projection is the model's own. A model whose patch embedding is
    not one linear map gets random weights of the same sizes.
    """
    spec = subject.model.spec
    embed: Any = next(iter(subject.model.patch_embed.children()))
    is_plain = isinstance(embed, LinearPatches) and isinstance(embed.norm, nn.Identity)
    if is_plain or isinstance(embed, ConvPatches):
        weight: Tensor = embed.proj.weight.flatten(1)
        return weight, embed.proj.bias, True
    length = subject.batch.shape[1] * spec.patch_size**2
    width = subject.sizes()["width"]
    return normal("projection", width, length).float() / length**0.5, None, False


@torch.no_grad()
def convolution_error(subject: Subject) -> float:
    """Return the largest difference between flatten + linear map and the strided convolution."""
    weight, bias, _ = projection(subject)
    images, size = subject.batch, subject.model.spec.patch_size
    flat = F.linear(patchify(images, size), weight, bias)  # (1, N, D)
    kernel = weight.unflatten(1, (images.shape[1], size, size))
    convolved = F.conv2d(images, kernel, bias, stride=size).flatten(2).mT
    return (flat - convolved).abs().max().item()


def sequence_lengths(height: int, width: int, prefix: int) -> list[dict[str, int]]:
    """Return tokens and edges per head for each patch size that divides the image."""
    sizes = [size for size in SIZES if height % size == 0 and width % size == 0]
    patches = [(size, (height // size) * (width // size)) for size in sizes]
    return [
        {"patch": size, "patches": count, "tokens": count + prefix, "edges": (count + prefix) ** 2}
        for size, count in patches
    ]


def explain(subject: Subject) -> Shown:
    model, spec = subject.model, subject.model.spec
    channels, height, width = subject.batch.shape[1:]
    prefix, is_own = model.num_prefix_tokens, projection(subject)[2]
    lengths, sizes = sequence_lengths(height, width, prefix), subject.sizes()
    about = f"{spec.patch_embed!r}: {PATCH_EMBEDS[spec.patch_embed].about}"
    shown = min(NUM_SHOWN, model.num_patches)
    return Shown(
        numbers={
            "image": [channels, height, width],
            "patch_size": spec.patch_size,
            "grid": list(model.grid_size),
            "patch_numbers": channels * spec.patch_size**2,
            "width": sizes["width"],
            "tokens": sizes["tokens"],
            "prefix": prefix,
            "lengths": lengths,
            "convolution_error": convolution_error(subject),
            "is_own": is_own,
        },
        words={
            "whose": "the model's own weights" if is_own else "random weights of these sizes",
            "embedding": "" if is_own else f"This model makes its tokens with patch_embed {about}.",
            "first": f"Tokens that stand for no patch: {prefix}"
            if prefix
            else "It has no CLS token",
            "pool": spec.pool,
            "shown": shown,
            "sizes": [
                row | {"own": " (this model)" if row["patch"] == spec.patch_size else ""}
                for row in lengths
            ],
        },
        drawings=[photo(subject, has_grid=True), strip(subject, shown)],
    )
