"""Topic ``patches``: how an image becomes a sequence.

Axes: C channels, P patch_size, N patches, D embed_dim.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitcli.core.nn.patch_embed import ConvPatches, LinearPatches, patchify
from vitcli.core.spec.slots import PATCH_EMBEDS
from vitcli.runner.explain.drawings import grid, patch_strip
from vitcli.runner.explain.lesson import Drawing, Lesson, LiveTable, error, shape
from vitcli.runner.explain.random_tensors import normal
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
    return normal("projection", subject.width, length).float() / length**0.5, None, False


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


def explain(subject: Subject) -> Lesson:
    model = subject.model
    channels, height, width = subject.batch.shape[1:]
    size, prefix = model.spec.patch_size, model.num_prefix_tokens
    numbers = {
        "image": [channels, height, width],
        "patch_size": size,
        "grid": list(model.grid_size),
        "patch_numbers": channels * size**2,
        "width": subject.width,
        "tokens": subject.num_tokens,
        "prefix": prefix,
        "lengths": sequence_lengths(height, width, prefix),
        "convolution_error": convolution_error(subject),
        "is_own": projection(subject)[2],
    }
    return Lesson(
        title="Patches: an image becomes a sequence",
        idea=(
            "A transformer reads a sequence of vectors. A text is cut into words or parts of words,"
            " and each gets a vector from a table. An image is cut into square patches, and each"
            " patch is flattened and mapped to a vector by one learned matrix. A CLS token may be"
            " prepended; then the classifier reads it."
        ),
        formula=(
            "z_{p} = E x_{p} + b,  E has D rows and C · P · P columns\n"
            "N = (H / P) · (W / P) + number of prefix tokens"
        ),
        tables=_tables(subject, numbers),
        findings=_findings(subject, numbers),
        tries=[
            ("vitcli train quickstart -s model.patch_size=8 --dry-run", "a quarter of the tokens"),
            ("vitcli train quickstart -s model.pool=cls --dry-run", "a CLS token"),
        ],
        numbers=numbers,
        drawings=_drawings(subject),
    )


def _findings(subject: Subject, numbers: dict[str, Any]) -> list[str]:
    name = subject.model.spec.patch_embed
    whose = "the model's own weights" if numbers["is_own"] else "random weights of these sizes"
    found = [
        "Flattening each patch and multiplying it by a matrix equals a convolution with kernel size"
        f" {numbers['patch_size']} and stride {numbers['patch_size']}: the largest difference is"
        f" {error(numbers['convolution_error'])} ({whose}, fp32).",
    ]
    if not numbers["is_own"]:
        about = PATCH_EMBEDS[name].about
        found.append(f"This model makes its tokens with patch_embed {name!r}: {about}.")
    prefix = numbers["prefix"]
    first = f"Tokens that stand for no patch: {prefix}" if prefix else "It has no CLS token"
    return [*found, f"{first}; the classifier pools with pool={subject.model.spec.pool!r}."]


def _tables(subject: Subject, numbers: dict[str, Any]) -> list[LiveTable]:
    channels, size, width = numbers["image"][0], numbers["patch_size"], numbers["width"]
    rows, columns = numbers["grid"]
    steps = (
        ("image (C, H, W)", shape(numbers["image"])),
        (f"grid of {size}x{size} patches", shape((rows, columns))),
        ("flattened patches", shape((rows * columns, numbers["patch_numbers"]))),
        ("after the map E", shape((rows * columns, width))),
        ("sequence, with prefix tokens", shape((numbers["tokens"], width))),
    )
    return [
        LiveTable(
            caption=f"From pixels to tokens; a patch has {channels} x {size} x {size} ="
            f" {numbers['patch_numbers']} numbers.",
            header=("step", "shape"),
            rows=steps,
            num_texts=2,
        ),
        LiveTable(
            caption="The same image with other patch sizes. The cost of attention grows with the"
            " edges.",
            header=("patch size", "patches", "tokens N", "edges N² per head"),
            rows=tuple(
                (
                    f"{row['patch']}{' (this model)' if row['patch'] == size else ''}",
                    *(f"{row[name]:,}" for name in ("patches", "tokens", "edges")),
                )
                for row in numbers["lengths"]
            ),
        ),
    ]


def _drawings(subject: Subject) -> list[Drawing]:
    count = min(NUM_SHOWN, subject.model.num_patches)
    return [
        Drawing(
            html=grid(subject, "picture with the borders of its patches"),
            caption=f"The picture as the model gets it: {subject.model.num_patches} patches.",
        ),
        Drawing(
            html=patch_strip(subject, count, "the first patches in reading order"),
            caption=f"The first {count} patches in reading order: the start of the sequence.",
        ),
    ]
