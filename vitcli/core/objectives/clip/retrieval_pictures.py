"""Pictures of retrieval: captions of images, and images of captions.

Axes: n images, G images of a gallery, U captions, C channels, H W pixels.
"""

from collections.abc import Sequence

from torch import Tensor

from vitcli.core.objectives.pictures import Grid, Table

GALLERY = 500
"""Number of test images among which a caption finds its images."""
SHOWN_CAPTIONS, SHOWN_IMAGES, BEST = 6, 6, 3


def caption_table(index: Tensor, own: Sequence[str], texts: Sequence[str], found: Tensor) -> Table:
    """Return the most similar of U captions for the images ``index``: (n,), (n, U) similarities."""
    values, places = found.float().topk(min(BEST, len(texts)), dim=1)
    rows = []
    for image, text, best, where in zip(
        index.tolist(), own, values.tolist(), places.tolist(), strict=True
    ):
        cells = [f"{texts[j]} ({value:.2f})" for value, j in zip(best, where, strict=True)]
        rows.append((str(image), text, *cells))
    heads = ("most similar", "second", "third")[: values.shape[1]]
    return Table(
        title="Captions of images",
        caption=f"The most similar of {len(texts):,} captions, with the cosine of the angle between"
        " image and caption.",
        head=("test image", "its caption", *heads),
        rows=tuple(rows),
    )


def image_grid(pixels: Tensor, texts: Sequence[str], found: Tensor) -> Grid:
    """Return the most similar of G images for captions, from similarities (U, G)."""
    places = found.float().topk(min(SHOWN_IMAGES, len(pixels)), dim=1).indices
    cells = pixels[places]  # (U, images, C, H, W)
    if cells.shape[2] != 3:
        cells = cells[:, :, :1].expand(-1, -1, 3, -1, -1)
    return Grid(
        title="Images of captions",
        caption=f"The most similar of {len(pixels):,} test images, the best one first.",
        columns=tuple(str(i + 1) for i in range(cells.shape[1])),
        cells=cells,
        row_names=tuple(texts),
    )
