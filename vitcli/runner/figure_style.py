"""The common style of all figures, and figures as the bytes of files.

The same figure always gives the same bytes.
"""

import io
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

INK, MUTED, FAINT = "#222222", "#6b6b6b", "#d9d9d9"
BLUE, VERMILION, GREEN = "#0072B2", "#D55E00", "#009E73"
PINK, ORANGE, SKY_BLUE = "#CC79A7", "#E69F00", "#56B4E9"
PALETTE = (BLUE, VERMILION, GREEN, PINK, ORANGE, SKY_BLUE, INK)
"""The colours of Okabe and Ito, which colour-blind readers can tell apart."""
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1)), (0, (5, 1, 1, 1)), (0, (8, 3)))
CMAP = "viridis"
"""The colour map of attention maps. Its lightness rises in even steps, so it can be read in grey
and by colour-blind readers."""
STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "text.parse_math": False,  # names may contain a dollar sign
    "svg.hashsalt": "vitcli",
    "savefig.dpi": 200,
}
METADATA: dict[str, dict[str, str | None]] = {
    "png": {},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


def encode(draw: Callable[[], Figure], form: str, *, software: str | None = None) -> bytes:
    """Draw a figure in vitcli's style and return the bytes of a png, svg or pdf file.

    The file holds no date and no version. ``software`` is written into a PNG file, and
    ``software_of`` reads it.
    """
    metadata = METADATA[form] | ({"Software": software} if form == "png" else {})
    with matplotlib.rc_context(STYLE), warnings.catch_warnings(), io.BytesIO() as file:
        # The font shows boxes for letters that it lacks; the user can do nothing about that.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        draw().savefig(file, format=form, metadata=metadata)
        return file.getvalue()


def bare(axes: Axes) -> None:
    """Remove ticks and frame, for a picture."""
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)


def draw_map_grid(
    grid: np.ndarray,
    maps: np.ndarray,
    *,
    row_names: Sequence[str] = (),
    column_names: Sequence[str] = (),
    **image_options: Any,
) -> AxesImage:
    """Draw maps (rows, columns, height, width) on a grid of axes with names at left and top.

    All maps get the same ``image_options``, so that they share one scale. Returns the last image,
    from which a colour bar can be made.
    """
    for place, axes in np.ndenumerate(grid):
        bare(axes)
        image = axes.imshow(maps[place], **image_options)
    for axes, name in zip(grid[:, 0], row_names, strict=False):
        axes.set_ylabel(name, fontsize=8)
    for axes, name in zip(grid[0], column_names, strict=False):
        axes.set_title(name, fontsize=8, loc="center")
    return image
