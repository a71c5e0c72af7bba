"""The common style of all figures; the same figure always gives the same bytes of a file."""

import io
import re
import warnings
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colorbar import Colorbar
from matplotlib.colors import Normalize, PowerNorm
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, get_font
from matplotlib.image import AxesImage
from matplotlib.legend import Legend

INK, MUTED, FAINT = "#222222", "#6b6b6b", "#d9d9d9"
BLUE, VERMILION, GREEN = "#0072B2", "#D55E00", "#009E73"
PINK, ORANGE, SKY_BLUE = "#CC79A7", "#E69F00", "#56B4E9"
PALETTE = (BLUE, VERMILION, GREEN, PINK, ORANGE, SKY_BLUE, INK)
"""The colours of Okabe and Ito, which colour-blind readers can tell apart."""
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1)), (0, (5, 1, 1, 1)), (0, (8, 3)))
CMAP = "viridis"
"""The colour map of attention maps. Its lightness rises in even steps, so it can be read in grey
and by colour-blind readers."""
FONT = "DejaVu Sans"
TITLE_SIZE, SMALL_SIZE, SOURCE_SIZE = 10, 8, 7.5
STYLE: Any = {
    "font.family": FONT,
    "font.size": 9,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": TITLE_SIZE,
    "axes.titlelocation": "left",
    "text.parse_math": False,  # names may contain a dollar sign
    "svg.hashsalt": "vitcli",
    "pdf.fonttype": 42,  # publishers refuse fonts of type 3
    "savefig.dpi": 200,
}
METADATA: dict[str, dict[str, str | None]] = {
    "png": {},
    "svg": {"Date": None},
    "pdf": {"CreationDate": None, "Producer": None},
}


def encode(draw: Callable[[], Figure], form: str, *, software: str | None = None) -> bytes:
    """Draw a figure in vitcli's style and return the bytes of a png, svg or pdf file.

    The file holds no date and no version, and no matplotlibrc changes it. ``software`` is written
    into the file, and ``software_of`` reads it from a PNG file.
    """
    metadata = METADATA[form] | {"Software" if form == "png" else "Creator": software}
    with matplotlib.rc_context(), warnings.catch_warnings(), io.BytesIO() as file:
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        # The font shows boxes for letters that it lacks; the user can do nothing about that.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        draw().savefig(file, format=form, metadata=metadata)
        return file.getvalue()


def encode_figures(figures: Mapping[str, Callable[[], Figure]]) -> dict[str, bytes]:
    """Return the content of each file, such as ``forest.svg``."""
    return {
        f"{name}.{form}": encode(draw, form) for name, draw in figures.items() for form in METADATA
    }


def bare(axes: Axes) -> None:
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
    """Draw maps (rows, columns, height, width) on axes with one scale; return the last image."""
    for place, axes in np.ndenumerate(grid):
        bare(axes)
        image = axes.imshow(maps[place], **image_options)
    for axes, name in zip(grid[:, 0], row_names, strict=False):
        axes.set_ylabel(name, fontsize=8)
    for axes, name in zip(grid[0], column_names, strict=False):
        axes.set_title(name, fontsize=8, loc="center")
    return image


def text_width(text: str, size: float) -> float:
    """Return the width of one line of text in inches, for a font size in points."""
    font = get_font(findfont(FONT))
    font.set_size(size, 72)
    font.set_text(text)
    return float(font.get_width_height()[0]) / 64 / 72


def wrap_text(text: str, width: float, size: float, max_lines: int | None = None) -> str:
    """Break text into lines of at most ``width`` inches.

    Lines end after a space (not before ``%``), ``_``, ``-`` or ``/`` if possible. Text beyond
    ``max_lines`` is replaced by ``...``.
    """
    lines: list[str] = []
    rest = text.strip()
    while rest:
        count = letters_that_fit(rest, width, size)
        if count < len(rest):
            if max_lines == len(lines) + 1:
                count = letters_that_fit(rest, width - text_width("...", size), size)
                return "\n".join([*lines, rest[:count].rstrip() + "..."])
            breaks = [found.end() for found in re.finditer(r"[ _/-]+(?!%)", rest[: count + 1])]
            count = max((end for end in breaks if end <= count), default=count)
        lines.append(rest[:count].rstrip())
        rest = rest[count:].lstrip()
    return "\n".join(lines)


def letters_that_fit(text: str, width: float, size: float) -> int:
    lengths = range(1, len(text) + 1)
    return max(1, bisect_right(lengths, width, key=lambda n: text_width(text[:n], size)))


def add_title(figure: Figure, title: str) -> None:
    width = figure.get_figwidth()
    text = wrap_text(title, width - 0.2, TITLE_SIZE)
    figure.set_figheight(figure.get_figheight() + 0.1 + 0.18 * (1 + text.count("\n")))
    figure.suptitle(text, x=0.1 / width, ha="left", fontsize=TITLE_SIZE)


def add_source(figure: Figure, source: str) -> None:
    width = figure.get_figwidth()
    text = wrap_text(source, width - 0.2, SOURCE_SIZE)
    figure.set_figheight(figure.get_figheight() + 0.1 + 0.14 * (1 + text.count("\n")))
    figure.supxlabel(text, x=0.1 / width, ha="left", fontsize=SOURCE_SIZE, color=MUTED)


def add_grid(axes: Axes, axis: Literal["both", "x", "y"] = "both") -> None:
    axes.grid(axis=axis, color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)


def add_legend_beside(axes: Axes, **options: Any) -> Legend:
    place: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.01, 1), "borderaxespad": 0}
    return axes.legend(**place, frameon=False, fontsize=SMALL_SIZE, **options)


def add_colour_bar(
    figure: Figure, image: AxesImage, axes: Axes | np.ndarray, label: str, **options: Any
) -> Colorbar:
    options = {"fraction": 0.04, "pad": 0.02} | options
    bar = figure.colorbar(image, ax=axes, **options)
    bar.set_label(label)
    assert bar.solids is not None, "an image has a filled bar"
    bar.solids.set_alpha(1)
    return bar


def add_share_bar(
    figure: Figure, image: AxesImage, axes: Axes | np.ndarray, **options: Any
) -> None:
    """Add the colour bar of shares of attention from 0 to the largest, with five even ticks."""
    norm = image.norm
    assert isinstance(norm, Normalize)
    is_square_root = isinstance(norm, PowerNorm) and norm.gamma == 0.5
    label = "share of attention, %" + ("\n(square-root scale)" if is_square_root else "")
    bar = add_colour_bar(figure, image, axes, label, **options)
    shares = norm.inverse(np.linspace(0, 1, 5)).tolist()
    bar.set_ticks(shares, labels=[f"{100 * share:.2g}" for share in shares])
    bar.minorticks_off()
