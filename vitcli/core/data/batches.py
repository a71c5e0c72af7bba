"""Batches of a data set that is stored on the device.

The order and every random choice are functions of (seed, epoch, sample index), so a resumed run
continues with the same pixels.

Axes: N images of the data set, B batch, C channels, H W pixels, K classes.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from vitcli.core.data import augment as aug
from vitcli.core.data.policy import apply_policy, draw_rand_augment, draw_trivial_augment
from vitcli.core.data.source import Images
from vitcli.core.randomness import keyed_generator
from vitcli.core.spec import AugmentSpec

Batch = dict[str, Tensor]
Draws = dict[str, Tensor]
"""Tables of random parameters. Row i belongs to image i of the data set, whatever the order of the
epoch."""


def epoch_order(num_images: int, seed: int, epoch: int) -> Tensor:
    """Return the order of the images in an epoch: a permutation (N,) int64 on the CPU."""
    return torch.randperm(num_images, generator=keyed_generator(seed, epoch, "order"))


def num_batches(num_images: int, batch_size: int) -> int:
    """Return the number of full batches in an epoch.

    Raises:
        ValueError: The images do not fill one batch.
    """
    if num_images < batch_size:
        raise ValueError(f"{num_images} images do not fill one batch of {batch_size}")
    return num_images // batch_size


def train_batches(
    images: Images,
    augment: AugmentSpec,
    *,
    mean: Sequence[float],
    std: Sequence[float],
    num_classes: int,
    batch_size: int,
    seed: int,
    epoch: int,
    first_batch: int = 0,
) -> Iterator[Batch]:
    """Return one epoch's batches from ``first_batch`` on, shuffled, augmented and normalised.

    A batch is {"images": (B, C, H, W) float32, "targets": (B,) int64 labels}. In an epoch with
    mixing the targets are (B, K) float32 probabilities. The last, smaller batch is dropped.
    """
    count = num_batches(len(images), batch_size)
    draws = _draw(augment, len(images), images.pixels.shape[-2:], seed, epoch)
    order = epoch_order(len(images), seed, epoch)

    def batches() -> Iterator[Batch]:
        device = images.pixels.device
        # One transfer per epoch is cheaper than one per batch.
        rows = {
            # apply_policy needs the operations on the CPU; see its docstring.
            name: table[order].to("cpu" if name == "op" else device, non_blocking=True)
            for name, table in draws.items()
        }
        index = order.to(device, non_blocking=True)
        channels = _channels(mean, std, device)
        for start in range(first_batch * batch_size, count * batch_size, batch_size):
            part = slice(start, start + batch_size)
            pixels, labels = images.pixels[index[part]], images.labels[index[part]]
            draw = {name: table[part] for name, table in rows.items()}
            x, y = _apply(augment, pixels, labels, draw, channels, num_classes)
            yield {"images": x, "targets": y}

    return batches()


def eval_batches(
    images: Images, *, mean: Sequence[float], std: Sequence[float], batch_size: int
) -> Iterator[Batch]:
    """Yield all images in their order, normalised. The last batch may be smaller."""
    channels = _channels(mean, std, images.pixels.device)
    for start in range(0, len(images), batch_size):
        part = slice(start, start + batch_size)
        normal = aug.normalize(images.pixels[part], *channels)
        yield {"images": normal, "targets": images.labels[part]}


def _channels(
    mean: Sequence[float], std: Sequence[float], device: torch.device
) -> tuple[Tensor, Tensor]:
    return torch.tensor(mean, device=device), torch.tensor(std, device=device)


def _draw(spec: AugmentSpec, num_images: int, size: Sequence[int], seed: int, epoch: int) -> Draws:
    """Draw all random parameters of one epoch. Each operation has its own generator."""
    height, width = size
    draws: Draws = {}
    if spec.crop_padding:
        generator = keyed_generator(seed, epoch, "crop")
        draws["crop"] = aug.draw_crop(num_images, spec.crop_padding, generator)
    if spec.flip == "random":
        draws["flip"] = aug.draw_flip(num_images, keyed_generator(seed, epoch, "flip"))
    if spec.flip == "alternating":
        first = aug.draw_flip(num_images, keyed_generator(seed, 0, "flip"))
        draws["flip"] = first ^ bool(epoch % 2)
    if spec.policy == "rand_augment":
        generator = keyed_generator(seed, epoch, "policy")
        draws["op"], draws["strength"] = draw_rand_augment(
            num_images, (height, width), spec.rand_num_ops, spec.rand_magnitude, generator
        )
    if spec.policy == "trivial_augment":
        generator = keyed_generator(seed, epoch, "policy")
        draws["op"], draws["strength"] = draw_trivial_augment(num_images, generator)
    if spec.erasing:
        generator = keyed_generator(seed, epoch, "erase")
        draws["erase"] = aug.draw_erase(num_images, (height, width), spec.erasing, generator)
    if spec.mixes and (spec.mix_off_epoch is None or epoch < spec.mix_off_epoch):
        draws["lam"], draws["box"] = aug.draw_mix(
            num_images,
            (height, width),
            mixup=spec.mixup,
            cutmix=spec.cutmix,
            prob=spec.mix_prob,
            switch_prob=spec.mix_switch_prob,
            generator=keyed_generator(seed, epoch, "mix"),
        )
    return draws


def _apply(
    spec: AugmentSpec,
    images: Tensor,
    labels: Tensor,
    draw: Draws,
    channels: tuple[Tensor, Tensor],
    num_classes: int,
) -> tuple[Tensor, Tensor]:
    """Augment and normalise a batch. Crop, flip and policy act on bytes, the rest on floats."""
    if "crop" in draw:
        images = aug.crop(images, draw["crop"], spec.crop_padding)
    if "flip" in draw:
        images = aug.flip(images, draw["flip"])
    if "op" in draw:
        images = apply_policy(images, draw["op"], draw["strength"])
    images = aug.normalize(images, *channels)
    if "erase" in draw:
        images = aug.erase(images, draw["erase"])
    if "lam" in draw:
        return aug.mix(images, labels, draw["lam"], draw["box"], num_classes)
    return images, labels
