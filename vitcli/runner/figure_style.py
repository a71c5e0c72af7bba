"""A figure as the bytes of a file, in one style; the same figure gives the same bytes."""

import io
import warnings
from collections.abc import Callable
from typing import Any

import matplotlib
from matplotlib.figure import Figure

INK, MUTED, FAINT = "#222222", "#6b6b6b", "#d9d9d9"
CMAP = "viridis"
"""Of maps. Even steps in lightness: it reads the same in grey and to colour-blind readers."""
STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "text.parse_math": False,  # a dollar in a name is a dollar
    "svg.hashsalt": "vitcli",
    "savefig.dpi": 200,
}
METADATA: dict[str, dict[str, str | None]] = {
    "png": {},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


def encode(draw: Callable[[], Figure], form: str, *, software: str | None = None) -> bytes:
    """Draw in vitcli's style and write as png, svg or pdf, without date and version.

    ``software`` is written into a PNG file, where ``software_of`` finds it.
    """
    metadata = METADATA[form] | ({"Software": software} if form == "png" else {})
    with matplotlib.rc_context(STYLE), warnings.catch_warnings(), io.BytesIO() as file:
        # A name in a script that the font lacks shows boxes; that is no reason to talk.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        draw().savefig(file, format=form, metadata=metadata)
        return file.getvalue()
