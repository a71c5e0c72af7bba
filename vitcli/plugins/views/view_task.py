"""Tasks that compare random views of images (multi-crop), and what their modules consist of.

The views are tables that are drawn once an epoch and applied at once. The draws are functions of
(seed, epoch, image). All changes of the colours of a view that are linear are one matrix, so a
batch of views costs one ``grid_sample`` and a few elementwise passes.

Axes: N images of the data set, B batch, V views, G global views, L local views, C channels, H W
pixels of an image, h w pixels of a view, D features of the encoder, F width, K classes, R images of
a picture. Colours of the tables are in [0, 1].

Multi-crop: Caron et al. 2020, https://arxiv.org/abs/2006.09882
"""

import math
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import cast

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from vitcli.core.data.augment import standardize
from vitcli.core.data.batches import Batch, EpochPlan, epoch_order, limit_images, num_batches
from vitcli.core.data.policy import Size
from vitcli.core.data.source import DataSet, Images
from vitcli.core.metrics.classification import score
from vitcli.core.metrics.knn import leave_one_out_knn
from vitcli.core.metrics.linear_probe import HELD_OUT
from vitcli.core.models.image_model import ImageModel
from vitcli.core.models.vit import VisionTransformer
from vitcli.core.objectives.objective import Outputs, Task
from vitcli.core.objectives.pictures import Grid
from vitcli.core.ops.backend import Gelu, Linear
from vitcli.core.randomness import Draws, keyed_generator
from vitcli.plugins.views.spec import ViewsSpec
from vitcli.runner.data.extras import column_of
from vitcli.runner.data.folds import linked_images

RATIO = (3 / 4, 4 / 3)
"""Smallest and largest width / height of a crop, as in Inception-style training."""
BRIGHTNESS, CONTRAST, SATURATION, HUE = 0.4, 0.4, 0.2, 0.1
"""Strengths of DINO's colour jitter; the hue is a share of a full turn."""
LUMA = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in a grey image (ITU-R BT.601)."""
BLUR = (0.1, 2.0)
"""Smallest and largest standard deviation of the blur in pixels of the view."""


def view_rows(
    num_images: int, in_chans: int, spec: ViewsSpec, *, seed: int, epoch: int, size: Size = (1, 1)
) -> EpochPlan:
    """Return the order and all random parameters of an epoch's views, on the CPU.

    ``global.NAME`` and ``local.NAME`` are the tables of :func:`draw_views`.
    """
    order = epoch_order(num_images, seed, epoch)
    rows = {"index": order}
    for kind, count in (("global", spec.num_global), ("local", spec.num_local)):
        if count:
            generator = keyed_generator(seed, epoch, "views", kind)
            tables = draw_views(num_images, in_chans, spec, kind, generator, size)
            rows |= {f"{kind}.{name}": table[order] for name, table in tables.items()}
    return rows


def draw_views(
    num_images: int,
    in_chans: int,
    spec: ViewsSpec,
    kind: str,
    generator: Generator,
    size: Size = (1, 1),
) -> EpochPlan:
    """Draw the parameters of all global or all local views.

    ``box`` (N, V, 4) and ``color`` (N, V, C, C + 1) are those of :func:`crop_views` and
    :func:`mix_colors`. ``blur`` (N, V) is the weight of :func:`blur`, ``solarize`` (N, V) bool. The
    last two exist only if the spec uses them.
    """
    is_global = kind == "global"
    count = spec.num_global if is_global else spec.num_local
    shape = (num_images, count)
    areas = spec.global_scale if is_global else spec.local_scale
    has_its_shape = is_global and spec.global_size is None
    aspect = 1.0 if has_its_shape else size[0] / size[1]
    tables = {
        "box": draw_boxes(shape, areas, spec.flip, generator, aspect),
        "color": draw_colors(shape, in_chans, spec, generator),
    }
    if spec.blur:
        sigma = _uniform(shape, *BLUR, generator)
        tail = (-0.5 / sigma.square()).exp()
        tables["blur"] = tail / (1 + 2 * tail) * _coin(shape, spec.blur, generator)
    if spec.solarize and is_global:
        tables["solarize"] = _coin(shape, spec.solarize, generator)
        tables["solarize"][:, torch.arange(count) != 1] = False
    return tables


def draw_boxes(
    shape: tuple[int, int],
    areas: tuple[float, float],
    flip: float,
    generator: Generator,
    aspect: float = 1.0,
) -> Tensor:
    """Draw crops (N, V, 4): left, top, width and height as shares of the image.

    ``areas`` are the smallest and largest share, and ``aspect`` is height / width of the image for
    square views, 1 for views of its own shape. A mirrored view has its right edge as ``left`` and a
    negative width. As in torchvision's RandomResizedCrop the area is uniform and the ratio
    log-uniform. Deviations: a side that is longer than the image is clipped, where torchvision
    draws again; places are not rounded; a view of the image's own shape has the ratio relative to
    that shape.
    """
    area = _uniform(shape, *areas, generator)
    ratio = _uniform(shape, math.log(RATIO[0]), math.log(RATIO[1]), generator).exp() * aspect
    width, height = (area * ratio).sqrt().clamp(max=1), (area / ratio).sqrt().clamp(max=1)
    left = (1 - width) * _uniform(shape, 0, 1, generator)
    top = (1 - height) * _uniform(shape, 0, 1, generator)
    mirrored = _coin(shape, flip, generator)
    left, width = left + width * mirrored, torch.where(mirrored, -width, width)
    return torch.stack([left, top, width, height], dim=-1)


def crop_views(images: Tensor, box: Tensor, size: Size) -> Tensor:
    """Return bilinear samples of crops: (B, C, H, W), (B, V, 4) -> (B, V, C, h, w).

    Deviation from DINO's code, which resizes with bicubic filters. Pixels are not averaged where a
    crop is larger than its view.
    """
    (height, width), (batch, views) = size, box.shape[:2]
    x = (torch.arange(width, device=box.device) + 0.5) / width
    y = (torch.arange(height, device=box.device) + 0.5) / height
    left, top, across, down = (2 * box).unsqueeze(-1).unbind(2)  # (B, V, 1) each
    x, y = left + across * x - 1, top + down * y - 1  # (B, V, w), (B, V, h)
    full = (batch, views, height, width)
    grid = torch.stack([x[:, :, None].expand(full), y[..., None].expand(full)], dim=-1)
    found = F.grid_sample(
        images, grid.flatten(1, 2), padding_mode="border", align_corners=False
    )  # (B, C, V h, w)
    return found.unflatten(2, (views, height)).transpose(1, 2)


def draw_colors(
    shape: tuple[int, int], in_chans: int, spec: ViewsSpec, generator: Generator
) -> Tensor:
    """Draw matrices (N, V, C, C + 1): new colour = matrix @ (colour, 1).

    Colour jitter as in DINO, then grey, then random mixing. Deviations: the order of the jitters is
    fixed, contrast is relative to mid-grey instead of the mean of the image, hue turns the colours
    about the grey axis, and colours are clipped once at the end. Saturation, hue and grey need RGB.
    """
    eye = torch.eye(in_chans)
    light, contrast, saturation = (
        _uniform(shape, 1 - strength, 1 + strength, generator)[..., None, None]
        for strength in (BRIGHTNESS, CONTRAST, SATURATION)
    )
    angle = 2 * math.pi * _uniform(shape, -HUE, HUE, generator)
    jittered = light * contrast * eye
    if in_chans == 3:
        jittered = turn_hue(angle) @ (gray_matrix() + saturation * (eye - gray_matrix())) @ jittered
    is_jittered = _coin(shape, spec.jitter, generator)[..., None, None]
    matrix = torch.where(is_jittered, jittered, eye)
    shift = torch.where(is_jittered, 0.5 * (1 - contrast), 0.0).expand(*shape, in_chans, 1)
    is_gray = _coin(shape, spec.gray, generator)[..., None, None]
    if in_chans == 3:
        matrix = torch.where(is_gray, gray_matrix() @ matrix, matrix)
    if spec.color_mix:
        mixing = torch.randn(*shape, in_chans, in_chans, generator=generator) / in_chans**0.5
        mixing = torch.where(_coin(shape, spec.color_mix, generator)[..., None, None], mixing, eye)
        matrix, shift = mixing @ matrix, mixing @ (shift - 0.5) + 0.5
    return torch.cat([matrix, shift], dim=-1)


def gray_matrix() -> Tensor:
    return torch.tensor(LUMA).expand(3, 3)


def turn_hue(angle: Tensor) -> Tensor:
    """Return rotations about the grey axis: (...) radians -> (..., 3, 3). Rodrigues' formula."""
    cos, sin = angle.cos()[..., None, None], angle.sin()[..., None, None]
    cross = torch.tensor([[0.0, -1.0, 1.0], [1.0, 0.0, -1.0], [-1.0, 1.0, 0.0]]) / 3**0.5
    return cos * torch.eye(3) + sin * cross + (1 - cos) / 3


def mix_colors(views: Tensor, color: Tensor) -> Tensor:
    """Return new colours, clipped to [0, 1]: (B, V, C, h, w), (B, V, C, C + 1) -> same shape."""
    columns = color[..., None, None].unbind(3)  # C + 1 times (B, V, C, 1, 1)
    mixed = columns[-1].expand_as(views)
    for channel, column in enumerate(columns[:-1]):
        mixed = torch.addcmul(mixed, column, views[:, :, channel : channel + 1])
    return mixed.clamp(0, 1)


def blur(views: Tensor, weight: Tensor) -> Tensor:
    """Blur with the kernel (a, 1 - 2a, a) in both directions: (B, V, C, h, w), (B, V) a.

    Three pixels are a tenth of a view of 32 pixels, as the 23 of DINO are of 224.
    """
    a = weight[:, :, None, None, None]
    for dim in (-1, -2):
        length = views.shape[dim]
        place = torch.arange(length, device=views.device)
        before = views.index_select(dim, (place - 1).clamp(min=0))
        after = views.index_select(dim, (place + 1).clamp(max=length - 1))
        views = views + a * (before + after - 2 * views)
    return views


def make_views(pixels: Tensor, tables: EpochPlan, size: Size) -> Tensor:
    """Return views with colours in [0, 255]: (B, C, H, W) uint8 -> (B, V, C, h, w) float32.

    A pure function of tensors on one device; the host decides and waits for nothing.
    """
    views = crop_views(pixels.float() / 255, tables["box"], size)
    views = mix_colors(views, tables["color"])
    if "blur" in tables:
        views = blur(views, tables["blur"])
    if "solarize" in tables:
        inverted = tables["solarize"][:, :, None, None, None] & (views >= 0.5)
        views = torch.where(inverted, 1 - views, views)
    return 255 * views


def _uniform(shape: tuple[int, ...], low: float, high: float, generator: Generator) -> Tensor:
    return low + (high - low) * torch.rand(shape, generator=generator)


def _coin(shape: tuple[int, ...], share: float, generator: Generator) -> Tensor:
    return torch.rand(shape, generator=generator) < share


STD = 0.02


class ViewTask(Task):
    """A task whose batches hold views: ``images`` (B, G, C, h, w) and ``local`` (B, L, C, h', w').

    ``local`` is absent without local views. An evaluation measures the k-NN accuracy of the
    encoder's features within a split. Own pictures of one group, or that look alike, do not vote
    for each other. The labels are read for this measure only.
    """

    _data: DataSet | None = None
    """The data set of the images to measure."""

    def check_data(self, data: DataSet) -> None:
        """Refuse a table of numbers or lists, whose images have no class for the measure."""
        if column := column_of(data.train.extra):
            raise ValueError(
                f"task.name: {self.spec.task.name} measures itself by classes, and {data.name} has"
                f" a column {column.column!r} instead; take the task mae"
            )
        self._data = data

    @property
    def views(self) -> ViewsSpec:
        return cast(ViewsSpec, self.spec.task)

    @property
    def sizes(self) -> dict[str, tuple[str, Size]]:
        """Return for each kind of view its name in a batch, and its height and width."""
        views, whole = self.views, self.spec.model.img_size or (1, 1)
        side = views.global_size
        found = {"global": ("images", (side, side) if side else whole)}
        if views.num_local:
            found["local"] = ("local", (views.local_size, views.local_size))
        return found

    def schedule(self, step: int, steps_per_epoch: int) -> dict[str, float]:
        """Return numbers that change from step to step. A batch has each as a tensor (B,)."""
        return {}

    def draw_rows(self, epoch: int, num_images: int, size: Size, is_cuda: bool) -> EpochPlan:
        chans = self.spec.model.in_chans or 1
        seed = self.spec.seed
        rows = view_rows(num_images, chans, self.views, seed=seed, epoch=epoch, size=size)
        batch_size = self.spec.train.batch_size
        count = num_batches(num_images, batch_size)
        steps = min(count, self.spec.train.limit_batches or count)
        values = [self.schedule(epoch * steps + i, steps) for i in range(steps)]
        index = (torch.arange(num_images) // batch_size).clamp(max=steps - 1)
        return rows | {name: torch.tensor([v[name] for v in values])[index] for name in values[0]}

    def make_batch(self, data: DataSet, rows: EpochPlan) -> Batch:
        return self.view_batch(data.train.pixels[rows["index"]], rows)

    def view_batch(self, pixels: Tensor, rows: EpochPlan) -> Batch:
        """Return the normalised views of images (B, C, H, W) uint8, and the other numbers."""
        batch: Batch = {}
        for kind, (name, size) in self.sizes.items():
            found = {k.removeprefix(f"{kind}."): v for k, v in rows.items() if k.startswith(kind)}
            batch[name] = standardize(make_views(pixels, found, size), *self._channels)
        rest = {k: v for k, v in rows.items() if "." not in k and k != "index"}
        return batch | rest

    @torch.inference_mode()
    def outputs(self, module: nn.Module, images: Images) -> Outputs:
        """Return the k-NN votes as ``logits`` (N, K) in fp32, and ``labels`` (N,)."""
        features, part = self.features(module, images), limit_images(images, self.spec)
        groups, count = self._groups_of(part), self.spec.model.num_classes or 1
        logits = leave_one_out_knn(features, part.labels, count, groups)
        return {"logits": logits, "labels": part.labels}

    def _groups_of(self, images: Images) -> Tensor | None:
        """Return the number of each own picture's group, (N,), see ``linked_images``."""
        data = self._data
        if not (data and data.contents):
            return None
        if images.names not in self._known_groups:
            given = images.to("cpu"), data.class_names, HELD_OUT, data.groups
            groups, *_ = linked_images(*given, may_be_short=True)
            self._known_groups[images.names] = torch.from_numpy(groups)
        return self._known_groups[images.names].to(images.labels.device)

    @cached_property
    def _known_groups(self) -> dict[tuple[str, ...], Tensor]:
        return {}

    def measure(self, outputs: Outputs) -> dict[str, float]:
        return {"knn_accuracy": score(outputs["logits"], outputs["labels"]).accuracy}

    @torch.inference_mode()
    def pictures(self, module: nn.Module, data: DataSet, index: Tensor) -> dict[str, Grid]:
        pixels = data.test.pixels[index]
        num, chans, *size = pixels.shape
        seed, shape = self.spec.seed, (size[0], size[1])
        tables = view_rows(num, chans, self.views, seed=seed, epoch=0, size=shape)
        order = tables.pop("index")
        place = order.argsort()  # row i of the tables belongs to image i again
        rows = {name: table[place].to(pixels.device) for name, table in tables.items()}
        batch = self.view_batch(pixels, rows)
        kinds = {}
        for kind, (name, _) in self.sizes.items():
            views = self.to_pixels(batch[name].flatten(0, 1)).cpu()
            kinds[kind] = views.unflatten(0, batch[name].shape[:2])
        images = data.normalize(pixels)
        return {"views": picture_views(self.to_pixels(images).cpu(), kinds)}


def picture_views(pixels: Tensor, kinds: dict[str, Tensor]) -> Grid:
    """Return images (R, 3, H, W) uint8 beside their views.

    ``kinds`` has for each kind of view its pixels (R, V, 3, h, w) uint8, which are enlarged.
    """
    size = (pixels.shape[-2], pixels.shape[-1])
    columns, cells = ["image"], [pixels[:, None]]
    for kind, views in kinds.items():
        columns += [f"{kind} {i + 1}" for i in range(views.shape[1])]
        large = F.interpolate(views.flatten(0, 1).float(), size=size, mode="nearest")
        cells.append(large.to(torch.uint8).unflatten(0, views.shape[:2]))
    return Grid(
        title="Views",
        caption="An image and the random views that the training compares. Local views are"
        " enlarged.",
        columns=tuple(columns),
        cells=torch.cat(cells, dim=1),
    )


class Projector(nn.Sequential):
    """MLP on features, (..., F in) -> (..., F out), with GELU and perhaps batch norm in between.

    The batch norm takes (B, F). It has no running statistics: the head is not used after the
    training.
    """

    def __init__(self, widths: Sequence[int], *, batch_norm: bool) -> None:
        layers: list[nn.Module] = []
        for before, after in pairwise(widths):
            layers.append(Linear(before, after))
            if batch_norm:
                layers.append(nn.BatchNorm1d(after, track_running_stats=False))
            layers.append(Gelu())
        super().__init__(*layers[: -2 if batch_norm else -1])

    def initialise(self, draws: Draws) -> None:
        """Fill the layers: truncated normal weights with standard deviation 0.02, biases of 0."""
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear):
                generator = draws(f"{name}.weight")
                nn.init.trunc_normal_(module.weight, std=STD, generator=generator)
                nn.init.zeros_(module.bias)


def all_features(encoder: ImageModel, images: Tensor, local: Tensor | None) -> Tensor:
    """Return the pooled features of global views, then those of local views: (B, V, D)."""
    features = []
    for views in [images] if local is None else [images, local]:
        flat = views.flatten(0, 1)
        if flat.shape[1:] == encoder.image_shape:
            pooled = encoder.features(flat)
        elif isinstance(encoder, VisionTransformer):
            pooled = encoder.pool(encoder.encode(flat))
        else:
            raise ValueError(f"family {encoder.spec.family!r} needs images of its own size")
        features.append(pooled.unflatten(0, views.shape[:2]))
    return torch.cat(features, dim=1)
