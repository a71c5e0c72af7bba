"""Batches of a data set that is stored on the device.

The order and every random choice are functions of (seed, epoch, sample index), so a resumed run
continues with the same pixels.

Axes: N images of the data set, B batch, C channels, H W pixels, K classes.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from vitcli.core.data import augment as aug
from vitcli.core.data import policy
from vitcli.core.data.policy_at_once import apply_at_once, draw_settings
from vitcli.core.data.source import Images, evenly_spaced
from vitcli.core.randomness import keyed_generator
from vitcli.core.spec import AugmentSpec, ExperimentSpec
from vitcli.core.spec.data import POLICIES
from vitcli.core.spec.rows import make, options_of
from vitcli.core.torch_use import to_device

Batch = dict[str, Tensor]
Draws = dict[str, Tensor]
"""Tables of random parameters. Row i belongs to image i of the data set, whatever the order of the
epoch."""
EpochPlan = dict[str, Tensor]
"""Tables of an epoch. Row i belongs to the i-th image in the order of the epoch. ``index`` is its
place in the data set; the other tables are the parameters of this epoch's augmentation."""
Channels = tuple[Tensor, Tensor]
"""Scale and shift of each channel: what :func:`augment.standardize` takes."""

LIMITED = 500
"""Images of a split that count as one batch of ``train.limit_batches``."""
IMAGES_AT_ONCE = {"cpu": 100}
"""By kind of device: a CPU evaluates 100 images at once 1.4 to 1.8 times as fast as 500
(``python experiments/speed/eval_portions.py``)."""


def epoch_order(num_images: int, seed: int, epoch: int) -> Tensor:
    """Return the order of the images in an epoch: a permutation (N,) int64 on the CPU."""
    return torch.randperm(num_images, generator=keyed_generator(seed, epoch, "order"))


def balanced_order(labels: Tensor, seed: int, epoch: int) -> Tensor:
    """Return N images drawn with replacement, each class equally often on average: (N,) int64."""
    counts = labels.bincount()
    generator = keyed_generator(seed, epoch, "order")
    return (1 / counts[labels].double()).multinomial(len(labels), True, generator=generator)


def num_batches(num_images: int, batch_size: int) -> int:
    if num_images < batch_size:
        raise ValueError(f"{num_images} images do not fill one batch of {batch_size}")
    return num_images // batch_size


def epoch_rows(
    num_images: int,
    size: Sequence[int],
    augment: AugmentSpec,
    *,
    seed: int,
    epoch: int,
    at_once: bool = False,
) -> EpochPlan:
    """Return the order and all random parameters of an epoch, on the CPU.

    Epochs with and without mixing have different tables, and therefore different targets. Epochs
    of the same copy (``augment.copies``) have different orders, but the same parameters. With
    ``at_once`` the tables of a policy are those of ``apply_at_once``, which CUDA needs.
    """
    order = epoch_order(num_images, seed, epoch)
    copy = epoch % augment.copies if augment.copies else epoch
    draws = _draw_all(augment, num_images, size, seed, copy, at_once)
    return {"index": order} | {name: table[order] for name, table in draws.items()}


def augmented_batch(
    images: Images, rows: EpochPlan, augment: AugmentSpec, channels: Channels, num_classes: int
) -> Batch:
    """Return the batch of B rows: gathered, augmented and normalised.

    Crop, flip and policy act on bytes, the rest on floats. A pure function of tensors on one
    device, except for "op" (see ``apply_policy``). With rows made for CUDA, the host neither
    decides nor waits nor copies, so a CUDA graph can capture the function.
    """
    x, targets = images.pixels[rows["index"]], images.labels[rows["index"]]
    if "crop" in rows:
        x = aug.crop(x, rows["crop"], augment.crop_padding)
    if "flip" in rows:
        x = aug.flip(x, rows["flip"])
    if "op" in rows:
        x = policy.apply_policy(x, rows["op"], rows["strength"], rows["matrix"])
    elif "matrix" in rows:
        x = apply_at_once(x, rows)
    if "uniform" in rows:
        row, options = POLICIES[augment.policy], options_of(augment.policy)
        x = make(row, x.float() / 255, rows["uniform"], **options).clamp(0, 1) * 255
    x = aug.standardize(x, *channels)
    if "erase" in rows:
        x = aug.erase(x, rows["erase"])
    if "lam" in rows:
        x, targets = aug.mix(x, targets, rows["lam"], rows["box"], rows["own"], num_classes)
    return {"images": x, "targets": targets}


def rows_on_device(rows: EpochPlan, device: torch.device) -> EpochPlan:
    # apply_policy needs the operations on the CPU; see its docstring.
    stays = {name: table for name, table in rows.items() if name.split(".")[-1] == "op"}
    return to_device({k: v for k, v in rows.items() if k not in stays}, device) | stays


def channels_on_device(
    mean: Sequence[float], std: Sequence[float], device: torch.device
) -> Channels:
    """Return the constants that normalise images, on a device."""
    scale, shift = aug.scale_and_shift(torch.tensor(mean), torch.tensor(std))
    moved = to_device({"scale": scale, "shift": shift}, device)
    return moved["scale"], moved["shift"]


def images_at_once(device: torch.device) -> int:
    """Return how many images an evaluation passes to the model at once."""
    return IMAGES_AT_ONCE.get(device.type, 500)


def limit_images(images: Images, spec: ExperimentSpec) -> Images:
    """Return the images of a split that ``train.limit_batches`` leaves, evenly spaced."""
    return evenly_spaced(images, num_limited(len(images), spec))


def num_limited(count: int, spec: ExperimentSpec) -> int:
    """Return how many of ``count`` images of a split ``train.limit_batches`` leaves."""
    limit = spec.train.limit_batches
    return min(count, limit * LIMITED) if limit else count


def split_batches(images: Images, spec: ExperimentSpec) -> Iterator[Batch]:
    """Yield the images that ``limit_images`` leaves in their order, normalised.

    The batches suit the device; the last one may be smaller.
    """
    assert spec.data.mean is not None
    assert spec.data.std is not None
    images, device = limit_images(images, spec), images.pixels.device
    channels = channels_on_device(spec.data.mean, spec.data.std, device)
    size = images_at_once(device)
    for start in range(0, len(images), size):
        part = slice(start, start + size)
        normal = aug.standardize(images.pixels[part], *channels)
        yield {"images": normal, "targets": images.labels[part]}


def _draw_all(
    spec: AugmentSpec, num_images: int, size: Sequence[int], seed: int, epoch: int, at_once: bool
) -> Draws:
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
    if POLICIES[spec.policy].source:
        generator = keyed_generator(seed, epoch, "policy")
        draws["uniform"] = torch.rand(num_images, POLICIES[spec.policy].draws, generator=generator)
    elif spec.policy != "none":
        draws |= _draw_policy(spec, num_images, (height, width), seed, epoch, at_once)
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
        draws["own"] = aug.own_share(draws["lam"], draws["box"], (height, width))
    return draws


def _draw_policy(
    spec: AugmentSpec, num_images: int, size: policy.Size, seed: int, epoch: int, at_once: bool
) -> Draws:
    generator = keyed_generator(seed, epoch, "policy")
    if spec.policy == "rand_augment":
        op, strength = policy.draw_rand_augment(
            num_images, size, spec.rand_num_ops, spec.rand_magnitude, generator
        )
    else:
        op, strength = policy.draw_trivial_augment(num_images, generator)
    if at_once:
        return draw_settings(op, strength, size)
    return {"op": op, "strength": strength, "matrix": policy.draw_matrices(op, strength, size)}


THREAD = "epoch-draws"
"""Start of the threads' names."""


class DrawnAhead:
    """Draws epochs, by a pure function, before they are needed: each in a thread of its own."""

    def __init__(self, draw: Callable[..., EpochPlan]) -> None:
        self._draw = draw
        self._drawn: dict[tuple[Hashable, ...], Future[EpochPlan]] = {}

    def start(self, *key: Hashable) -> None:
        pool = ThreadPoolExecutor(1, thread_name_prefix=THREAD)
        self._drawn[key] = pool.submit(self._draw, *key)
        pool.shutdown(wait=False)  # the thread finishes its draw and ends

    def take(self, *key: Hashable) -> EpochPlan:
        """Return ``draw(*key)``, and raise what it raised. It is drawn now if it was not begun."""
        drawn = self._drawn.pop(key, None)
        return drawn.result() if drawn else self._draw(*key)
