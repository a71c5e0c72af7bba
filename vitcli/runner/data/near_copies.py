"""Pictures that are the same, or nearly: rotated, mirrored, resized, re-encoded, cut at edges.

Axes: N M pictures, C channels, H W pixels, F numbers of a picture.
"""

import hashlib
from collections.abc import Collection, Iterable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from vitcli.core.data.source import Images
from vitcli.runner.data.arrays import pixel_digests, stretch_to_size
from vitcli.runner.data.listing import PictureFolder
from vitcli.runner.data.pictures import picture_bytes

SIDE = 16
"""Pictures are compared as squares of this side, without the finer detail."""
LEAST = 0.9
"""Smallest correlation of the grey gradients of two pictures that are nearly the same."""
LEAST_COLOUR, MOST_TINT = 0.85, 40.0
"""Smallest correlation of the gradients of their colours, and largest difference of their mean
colours (0 to 255) apart from the brightness. The copies of CIFAR-10 that were saved in other
colours keep these limits."""
SAME_COLOUR, SAME_TINT = 0.97, 5.0
"""The same limits for pictures of two classes, which a colour may tell apart, or how bright it is:
the first one as a share of the correlation in grey, the second one for means and standard
deviations of the colours. Copies that were turned, cut or saved again keep them."""
COLOURS = 3
"""Number of colours that are compared; of more channels, the means of neighbouring ones."""
CUTS = (0.9, 0.8)
"""Shares of the sides that are left of a picture which was cut at its edges."""
FLATTEST = 2.0
"""Pictures whose grey levels (0 to 255) differ less than this between neighbours are not compared:
noise would decide."""
MOST_PAIRS = 100_000_000
"""Number of pairs above which pictures are not compared, because it takes minutes."""
AT_ONCE, AVERAGED, HASHED, PAIRS = 2000, 100, 256, 10_000
Named = Iterable[tuple[bytes, str]]
"""The digest of the pixels and the name of each image."""
Labels = tuple[Tensor, Tensor] | None
"""The classes of pictures (N) and of the others (M)."""


def without_bars(images: Images) -> Tensor:
    """Return the pixels to compare, uint8: of pictures with bars, squares of what they show."""
    if images.shown is None:
        return images.pixels
    squares = torch.empty(*images.pixels.shape[:2], 2 * SIDE, 2 * SIDE, dtype=torch.uint8)
    parts = (each.split(AVERAGED) for each in (images.pixels, images.shown, squares))
    for pixels, boxes, out in zip(*parts, strict=True):
        for box in boxes.unique(dim=0):
            rows, (top, left, height, width) = (boxes == box).all(1), box.tolist()
            inside = pixels[rows][..., top : top + height, left : left + width]
            out[rows] = stretch_to_size(inside, (2 * SIDE, 2 * SIDE))
    return squares


def near_copies(
    pictures: Tensor, others: Tensor, labels: Labels = None, *, in_colour: bool = True
) -> list[tuple[int, int]]:
    """Return which picture is nearly the same as which other one: pairs of indices.

    Each picture (N, C, H, W) uint8 has at most one partner of (M, C, H, W) uint8, the most similar.
    Each other picture is compared as it is, turned, mirrored and cut; and each picture cut, too.
    """
    best = torch.full((len(pictures),), LEAST)
    partner = torch.full((len(pictures),), -1)
    for start, similarities in _similarities(pictures, others, labels, in_colour):
        part = slice(start, start + AT_ONCE)
        similarity, index = similarities.max(1)
        better = similarity > best[part]
        best[part] = torch.where(better, similarity, best[part])
        partner[part] = torch.where(better, index, partner[part])
    return [(row, other) for row, other in enumerate(partner.tolist()) if other >= 0]


def pairs_alike(
    pictures: Tensor, labels: Tensor | None = None, *, in_colour: bool = True
) -> Tensor:
    """Return the pairs of pictures (N, C, H, W) uint8 that are nearly the same.

    They are pairs of indices, the larger one first, sorted: (P, 2). See ``near_copies``.
    """
    alike = torch.zeros(len(pictures), len(pictures), dtype=torch.bool)
    both = None if labels is None else (labels, labels)
    for start, similarities in _similarities(pictures, pictures, both, in_colour):
        alike[start : start + AT_ONCE] |= similarities > LEAST
    return (alike | alike.T).tril(-1).nonzero()


def _similarities(
    pictures: Tensor, others: Tensor, labels: Labels, in_colour: bool
) -> Iterator[tuple[int, Tensor]]:
    """Yield the first of up to AT_ONCE pictures, and their similarities to all others (n, M).

    Two pictures in different colours, by their gradients and tints, have the similarity 0.
    """
    greys = _views(_small(pictures, 1), _small(others, 1))
    has_colours = in_colour and (labels is not None or pictures.shape[1] > 1)
    colours = _views(_small(pictures, COLOURS), _small(others, COLOURS)) if has_colours else None
    for grey in greys:
        mine, theirs = map(_gradients, grey)
        colour = []
        for picture in next(colours) if colours else ():
            means, spreads = picture.mean((2, 3)), picture.std((2, 3))
            tints = means - means.mean(1, keepdim=True)
            colour.append((_gradients(picture), tints, torch.cat([means, spreads], dim=1)))
        for start in range(0, len(mine), AT_ONCE):
            similarities = mine[start : start + AT_ONCE] @ theirs.T
            for pairs in (similarities > LEAST).nonzero().split(PAIRS) if colour else ():
                rows, columns = pairs.T
                (gradients, tints, looks), (other_gradients, other_tints, other_looks) = colour
                correlations = (gradients[start + rows] * other_gradients[columns]).sum(1)
                differences = (tints[start + rows] - other_tints[columns]).abs().amax(1)
                same = (correlations > LEAST_COLOUR) & (differences < MOST_TINT)
                if labels:
                    equal = correlations > SAME_COLOUR * similarities[rows, columns]
                    of_one = labels[0][start + rows] == labels[1][columns]
                    apart = (looks[start + rows] - other_looks[columns]).abs().amax(1)
                    same &= of_one | (equal & (apart < SAME_TINT))
                similarities[rows[~same], columns[~same]] = 0.0
            yield start, similarities


def _views(mine: Tensor, theirs: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield small pictures (N, C, H, W), (M, C, H, W) in which copies of a kind look the same."""
    for turned in (theirs, theirs.flip(-1)):
        for turns in range(4):
            yield mine, turned.rot90(turns, (-2, -1))
    for share in CUTS:
        yield mine, _cut(theirs, share)
        yield _cut(mine, share), theirs


def _small(pictures: Tensor, colours: int) -> Tensor:
    """Return the means of up to so many groups of channels, (N, colours, 2 SIDE, 2 SIDE)."""

    def means(part: Tensor) -> Tensor:
        groups = part.chunk(colours, dim=1)
        return torch.cat([group.float().mean(1, keepdim=True) for group in groups], dim=1)

    return torch.cat([_resized(means(part), 2 * SIDE) for part in pictures.split(AVERAGED)])


def _resized(grey: Tensor, side: int) -> Tensor:
    return F.interpolate(grey, (side, side), mode="bilinear", antialias=True, align_corners=False)


def _cut(grey: Tensor, share: float) -> Tensor:
    margin = round(grey.shape[-1] * (1 - share) / 2)
    return grey[..., margin:-margin, margin:-margin]


def _gradients(grey: Tensor) -> Tensor:
    """Return the differences of neighbouring pixels with norm 1, (N, F); 0 for flat pictures."""
    small = _resized(grey, SIDE)
    down, right = small.diff(dim=-2), small.diff(dim=-1)
    both = torch.cat([down.flatten(1), right.flatten(1)], dim=1)
    norm = both.norm(dim=1, keepdim=True)
    is_flat = norm < FLATTEST * both.shape[1] ** 0.5
    return torch.where(is_flat, 0.0, both / norm.clamp(min=1e-6))


def exact_copies(test: Named, train: Named) -> list[tuple[str, str]]:
    last = dict(train)
    return [(name, last[digest]) for digest, name in test if digest in last]


def content_digests(folder: PictureFolder, failures: Collection[int]) -> dict[int, bytes]:
    """Return the SHA-256 of each readable picture as stored, by its index.

    It is that of the bytes of a file, or of the pixels of an array as they are read.
    """
    if not folder.arrays:
        paths = {row: path for row, path in enumerate(folder.paths) if row not in failures}
        return {row: hashlib.sha256(picture_bytes(path)).digest() for row, path in paths.items()}
    levels = folder.data.levels
    parts = (part for array in folder.arrays for part in array.parts(HASHED, levels))
    return dict(enumerate(digest for part in parts for digest in pixel_digests(part)))
