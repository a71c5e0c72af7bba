"""The page of ``vitcli eval --review``: pictures to look at again, and a button for corrections.

The page is one file. It needs no network, and its only script saves the corrections.
"""

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib import colormaps
from PIL import Image

from vitcli.plugins.review.review import Doubt, Review
from vitcli.runner.attn_map.overlay import OPACITY, map_scale
from vitcli.runner.data.contact_sheet import to_rgb
from vitcli.runner.data.corrections import read_corrections
from vitcli.runner.data.find import own_path
from vitcli.runner.data.listing import PictureFolder
from vitcli.runner.data.picture_reader import list_pictures
from vitcli.runner.data.pictures import Box, picture_bytes, picture_to_draw
from vitcli.runner.errors import InputError
from vitcli.runner.evaluate.scores import why_uncalibrated
from vitcli.runner.figure_style import CMAP
from vitcli.runner.files import commit, policy_hash
from vitcli.runner.report import pages
from vitcli.runner.text import portable

PAGE = "review.html"
SHOWN_SIDE = 192
"""Largest longer side of an embedded picture, in pixels."""


def write_review(review: Review, data_dir: Path | None = None) -> Path:
    """Write the page into the run folder, for a bundled model into the current one; return it."""
    run = review.found.run
    path = Path(PAGE) if run.is_bundled else run.path / PAGE
    name = review.found.spec.data.name
    place = own_path(name, data_dir)
    folder = list_pictures(name, data_dir) if place else None
    moved = f"{name.partition(':')[0]}:{place}" if place != own_path(name) else ""
    commit(path, html(review, folder, moved).encode())
    return path


def html(review: Review, folder: PictureFolder | None, moved: str = "") -> str:
    """Return the page; ``folder`` has the user's own pictures, ``moved`` is its new name."""
    root = folder.root if folder else None
    run, spec = review.found.run, review.found.spec.data
    made = read_corrections(spec.corrections, folder) if folder else {}
    more = ["--data", moved] if moved else []
    verb = "train -s data.corrections=corrections.csv"
    classes = review.found.data.class_names
    script = pages.source("review.js")
    return pages.render(
        "review.html",
        uncalibrated=why_uncalibrated(review.found.record),
        review=review,
        name=run.name,
        data_name=portable(spec.name),
        errors=[_card(review, doubt, root) for doubt in review.errors],
        suspects=[_card(review, doubt, root) for doubt in review.suspects],
        copies=[[_card(review, doubt, root) for doubt in pair] for pair in review.copies],
        can_correct=root is not None,
        command=run.command(verb, of_config=True, more=[*more, "--name", "NAME"]),
        data={
            "classes": classes,
            "corrections": [
                [name, "" if label is None else classes[label]] for name, label in made.items()
            ],
        },
        script=script,
        script_hash=Markup(policy_hash(script)),
    )


def _card(review: Review, doubt: Doubt, root: Path | None) -> dict[str, Any]:
    picture, size = to_rgb(doubt.pixels[None])[0], (doubt.pixels.shape[1], doubt.pixels.shape[2])
    box = (0, 0, *size)
    with contextlib.suppress(InputError):  # the file is gone, or its name has control characters
        if root is not None:
            fit = review.found.spec.data.fit
            picture, box = picture_to_draw(picture_bytes(root / doubt.name), doubt.name, size, fit)
    heat = None
    if review.method is not None and doubt.heat is not None:
        heat = _map(review.method, doubt.heat.numpy(), picture, box)
    return {
        "doubt": doubt,
        "picture": pages.picture_uri(picture, SHOWN_SIDE),
        "map": None if heat is None else pages.picture_uri(heat, SHOWN_SIDE),
        "is_small": max(picture.shape[:2]) < SHOWN_SIDE // 2,
    }


def _map(method: str, heat: np.ndarray, picture: np.ndarray, box: Box) -> np.ndarray:
    """Return a map (gh, gw) over the model's input in grey: (height, width, 3) uint8."""
    top, left, height, width = box
    scaled = map_scale(method, heat.max())(heat)
    layer = Image.fromarray(colormaps[CMAP](scaled, bytes=True)[..., :3])
    colours = np.asarray(layer.resize((width, height), Image.Resampling.NEAREST))
    grey = picture[top : top + height, left : left + width].mean(-1, keepdims=True)
    return (OPACITY * colours + (1 - OPACITY) * grey).round().astype(np.uint8)
