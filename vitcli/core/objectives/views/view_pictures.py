"""Pictures of tasks on views. Axes: R images, V views, N tokens, D embed_dim, H W pixels."""

import torch
import torch.nn.functional as F
from torch import Tensor

from vitcli.core.models.image_model import ImageModel
from vitcli.core.models.vit import VisionTransformer
from vitcli.core.objectives.pictures import Grid, Heat

QUERIES = {"centre": (0.5, 0.5), "upper left": (0.25, 0.25), "lower right": (0.75, 0.75)}
"""Name of a patch -> its place as shares of the height and the width."""


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
