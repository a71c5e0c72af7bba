"""The base class of tasks that compare views of an image, and what their modules consist of.

Axes: B batch, N images, G global views, L local views, C channels, H W pixels of an image, h w
pixels of a view, D features of the encoder, F width, K classes, R images of a picture.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitcli.core.data.augment import standardize
from vitcli.core.data.batches import Batch, EpochPlan, limit_images, num_batches
from vitcli.core.data.policy import Size
from vitcli.core.data.source import DataSet, Images
from vitcli.core.metrics.classification import score
from vitcli.core.metrics.knn import leave_one_out_knn
from vitcli.core.models.image_model import ImageModel
from vitcli.core.models.vit import VisionTransformer
from vitcli.core.objectives.objective import Outputs, Task
from vitcli.core.objectives.pictures import Grid, Heat, Picture
from vitcli.core.ops.backend import Gelu, Linear
from vitcli.core.randomness import Draws
from vitcli.plugins.views.multi_crop import make_views, view_rows
from vitcli.plugins.views.spec import ViewsSpec

STD = 0.02
QUERIES = {"centre": (0.5, 0.5), "upper left": (0.25, 0.25), "lower right": (0.75, 0.75)}
"""Name of a patch -> its place as shares of the height and the width."""


class ViewTask(Task):
    """A task whose batches hold views: ``images`` (B, G, C, h, w) and ``local`` (B, L, C, h', w').

    ``local`` is absent without local views. An evaluation measures the k-NN accuracy of the
    encoder's features within a split. The labels are read for this measure only.
    """

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
    def outputs(self, module: nn.Module, images: Images, *, flip: bool = False) -> Outputs:
        """Return the k-NN votes as ``logits`` (N, K) in fp32, and ``labels`` (N,)."""
        features = self.features(module, images)
        if flip:
            mirrored = self.features(module, Images(images.pixels.flip(-1), images.labels))
            features = F.normalize(features, dim=1) + F.normalize(mirrored, dim=1)
        labels = limit_images(images, self.spec).labels
        logits = leave_one_out_knn(features, labels, self.spec.model.num_classes or 1)
        return {"logits": logits, "labels": labels}

    def measure(self, outputs: Outputs) -> dict[str, float]:
        return {"knn_accuracy": score(outputs["logits"], outputs["labels"]).accuracy}

    @torch.inference_mode()
    def pictures(self, module: nn.Module, data: DataSet, index: Tensor) -> dict[str, Picture]:
        """Return the views of test images, and the similarity of their patches if it is defined."""
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
        found: dict[str, Picture] = {"views": picture_views(self.to_pixels(images).cpu(), kinds)}
        encoder = self.encoder(module)
        was_training = encoder.training
        similarity = picture_similarity(encoder.eval(), images)
        encoder.train(was_training)
        return found | ({"similarity": similarity} if similarity else {})


def picture_views(pixels: Tensor, kinds: dict[str, Tensor]) -> Grid:
    """Return images (R, 3, H, W) uint8 beside their views.

    ``kinds`` has for each kind of view its pixels (R, V, 3, h, w) uint8. They are enlarged to the
    size of the images.
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


def picture_similarity(encoder: ImageModel, images: Tensor) -> Heat | None:
    """Return cosine similarities of some patches to all patches of normalised images.

    The features are the tokens after the last norm. None if the encoder has no such patches.
    """
    if not isinstance(encoder, VisionTransformer):
        return None
    tokens = encoder.forward_features(images)[:, encoder.num_prefix_tokens :].float()
    tokens = F.normalize(tokens - tokens.mean(1, keepdim=True), dim=-1)
    height, width = encoder.grid_size
    places = [int(y * height) * width + int(x * width) for y, x in QUERIES.values()]
    similarity = torch.einsum("rqd,rnd->rqn", tokens[:, places], tokens)
    return Heat(
        title="Similarity of patches",
        caption="Cosine similarity of one patch's features to those of all patches, after"
        " subtraction of the image's mean.",
        columns=tuple(QUERIES),
        cells=similarity.unflatten(-1, (height, width)).cpu(),
        x_label="column",
        y_label="row",
        colour_label="cosine similarity",
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
