"""RandAugment and TrivialAugment for CUDA: each image goes through the same few kernels.

Each operation of ``policy.OPS`` is a setting of one general operation: take pixels from places that
a matrix names, blend them with another picture, and map their levels by a table. The settings are
drawn with the operations, so the host neither sorts a batch nor waits. The pixels are those of
``policy.apply_policy``, which a CPU computes faster.
Axes: N images of the data set, B batch, C channels, H W pixels, k operations per image.
"""

import math

import torch
from torch import Tensor

from vitcli.core.data import policy

NEVER = 2**30
"""A divisor that makes every number of pixels zero."""


def draw_settings(op: Tensor, strength: Tensor, size: policy.Size) -> dict[str, Tensor]:
    """Return the settings of drawn operations (N, k): the tables that ``apply_at_once`` reads.

    ``tone`` (N, k, 3): the share of the image, the share of the other picture, and the divisor of
    the sum of its grey levels. ``choice`` (N, k, 3): whether the other picture is the grey image,
    whether it is the smoothed image, and whether levels are replaced by their ranks. ``level``
    (N, k, 5): the bits to keep, the first level to invert, and three numbers of ``stretch``.
    """
    chosen = {name: op == place for place, name in enumerate(policy.OPS)}
    is_blend = chosen["brightness"] | chosen["color"] | chosen["contrast"] | chosen["sharpness"]
    is_auto, is_equal = chosen["auto_contrast"], chosen["equalize"]
    factor = torch.where(is_blend, strength, 1.0)
    num_pixels = torch.where(chosen["contrast"], float(math.prod(size)), math.inf)
    bits = torch.where(chosen["posterize"], strength, 8.0).round().int()
    first = torch.where(chosen["solarize"], strength, 256.0).ceil().int()
    level = [
        256 - 2 ** (8 - bits),
        first,
        torch.where(is_auto, 255, 1),
        torch.where(is_auto, 1, torch.where(is_equal, 255, NEVER)),
        torch.where(is_equal, 2, NEVER),
    ]
    return {
        "matrix": policy.draw_matrices(op, strength, size),
        "tone": torch.stack([factor, 1 - factor, num_pixels], dim=-1),
        "choice": torch.stack([chosen["color"], chosen["sharpness"], is_equal], dim=-1),
        "level": torch.stack([row.int() for row in level], dim=-1),
    }


def apply_at_once(images: Tensor, settings: dict[str, Tensor]) -> Tensor:
    """Apply the k operations of rows of ``draw_settings``: (B, C, H, W) uint8 -> the same."""
    height, width = images.shape[-2:]
    index, is_inside = policy.nearest_pixels(settings["matrix"], (height, width))  # (B, k, H W)
    levels = torch.arange(256, dtype=torch.uint8, device=images.device)
    every = levels.expand(*images.shape[:2], 256).contiguous()
    bits, first, *numbers = settings["level"][..., None, None].unbind(2)  # each (B, k, 1, 1)
    simple = torch.where(levels >= first, 255 - levels, levels & bits)  # (B, k, 1, 256)
    rounds = (index, is_inside, settings["tone"], settings["choice"], simple, *numbers)
    for place, inside, tone, choice, table, *stretching in zip(
        *(row.unbind(1) for row in rounds), strict=True
    ):
        is_grey, is_smooth, is_equal = choice[..., None, None, None].unbind(1)  # (B, 1, 1, 1)
        images = policy.take_pixels(images, place, inside)
        table = stretch(images, every, table, is_equal[..., 0], *stretching)
        images = mix_tones(images, tone, is_grey, is_smooth)
        images = table.gather(2, images.flatten(2)).view_as(images)
    return images


def mix_tones(images: Tensor, tone: Tensor, is_grey: Tensor, is_smooth: Tensor) -> Tensor:
    """Blend images with their grey or smoothed image, their mean level or black -> int64."""
    share, rest, num_pixels = tone[..., None, None, None].unbind(1)  # (B, 1, 1, 1)
    if images.shape[1] == 1:  # grey already
        share, rest = torch.where(is_grey, 1, share), torch.where(is_grey, 0, rest)
    luma = policy.grey(images)
    total = luma.sum(dim=(1, 2, 3), keepdim=True, dtype=torch.int64).float()
    mean = (total.double() / num_pixels).float()  # compiled code divides only doubles exactly
    other = torch.where(is_smooth, policy.smooth(images), torch.where(is_grey, luma, mean))
    return (share * images + rest * other).clamp_(0, 255).long()


def stretch(
    images: Tensor,
    every: Tensor,
    simple: Tensor,
    is_equal: Tensor,
    scale: Tensor,
    divisor: Tensor,
    half: Tensor,
) -> Tensor:
    """Return the table of new levels (B, C, 256) uint8 of each channel.

    Automatic contrast stretches the levels, and equalisation their ranks, which are the numbers of
    darker pixels. Other operations keep the table ``simple``, and so does a channel whose levels
    or ranks have no range to stretch.
    """
    ranked = images.flatten(2).sort(dim=2).values
    darker = torch.searchsorted(ranked, every, out_int32=True)
    rank = torch.where(is_equal, darker, every)
    ends = rank.gather(2, ranked[..., :: max(ranked.shape[2] - 1, 1)].long())
    low, high = ends[..., :1], ends[..., -1:]
    step = (high - low) // divisor
    level = ((rank - low) * scale + step // half) // step.clamp(min=1)
    return torch.where(step > 0, level.clamp_(max=255), simple).byte()
