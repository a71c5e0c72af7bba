"""Scenes for the explorer, and what its page shows in a browser."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.testing import assert_allclose

from tests.browser.chromium import Page
from tests.core.specs import noisy
from vitcli.core.models.vit import VisionTransformer, build_vit
from vitcli.core.spec import model_spec
from vitcli.plugins.live.page import Scene, make_scene

PREFIX = 2
NAMES = ["cat", "dog", "ship", "frog", "deer"]
Open = Callable[..., Page]


def make_model(**changes: Any) -> VisionTransformer:
    """Return a model with large random weights, so that attention differs between patches."""
    torch.manual_seed(1)
    fields: dict[str, Any] = {"img_size": (32, 32), "in_chans": 3, "num_classes": 5}
    fields |= {"patch_size": 4, "embed_dim": 24, "depth": 3, "num_heads": 3, "reg_tokens": 1}
    model: VisionTransformer = noisy(build_vit(model_spec(**(fields | changes))).eval(), 0.25)
    return model


def scene_of(model: VisionTransformer, batch: torch.Tensor | None = None, **changes: Any) -> Scene:
    picture = np.random.default_rng(0).integers(0, 256, (60, 100, 3), dtype=np.uint8)
    fields: dict[str, Any] = {"name": "x.png", "picture": picture, "box": (0, 20, 60, 60)}
    fields |= {"class_names": NAMES, "temperature": 1.0}
    return make_scene(model, images(model) if batch is None else batch, **(fields | changes))


def images(model: VisionTransformer) -> torch.Tensor:
    drawn = torch.randn(1, *model.image_shape, generator=torch.Generator().manual_seed(0))
    return drawn.to(next(model.parameters()))


def state(shown: Page) -> dict[str, str]:
    drawn = (
        "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() =>"
        " done({...document.querySelector('.explorer').dataset}))))"
    )
    return dict(shown.evaluate(drawn))


def values(shown: Page) -> np.ndarray:
    return np.array(json.loads(state(shown)["values"]))


def text(shown: Page, part: str) -> str:
    found: str = shown.evaluate(f"document.querySelector('.{part}').textContent")
    return found.replace("\xa0", " ")


def middle(shown: Page, selector: str) -> tuple[float, float]:
    x, y = shown.evaluate(
        f"(() => {{ const box = document.querySelector({selector!r}).getBoundingClientRect();"
        " return [box.x + box.width / 2, box.y + box.height / 2]; })()"
    )
    return x, y


def place(shown: Page, scene: Scene, row: int, column: int) -> tuple[float, float]:
    left, top, width, height = shown.evaluate(
        "(() => { const box = document.querySelector('.stage').getBoundingClientRect();"
        " return [box.x, box.y, box.width, box.height]; })()"
    )
    tall, wide = scene.picture.shape[:2]
    box_top, box_left, box_height, box_width = scene.box
    across = (box_left + (column + 0.5) / scene.grid[1] * box_width) / wide
    down = (box_top + (row + 0.5) / scene.grid[0] * box_height) / tall
    return left + across * width, top + down * height


def patch(scene: Scene, row: int, column: int) -> int:
    return len(scene.prefix) + row * scene.grid[1] + column


def close_to(row: np.ndarray, expected: np.ndarray, largest: float | None = None) -> None:
    """Compare rows up to the quantisation of the page and the rounding of its attributes."""
    step = (expected.max() if largest is None else largest) / 255
    assert_allclose(row, expected, atol=step + 1e-6)
    assert not np.allclose(row, np.roll(expected, 1), atol=step), "any row would do"


def colour_at(shown: Page, x: float, y: float) -> list[int]:
    state(shown)  # the page draws at most once a frame
    found: list[int] = shown.evaluate(
        "(() => { const canvas = document.querySelector('.stage');"
        " const box = canvas.getBoundingClientRect(); const s = canvas.width / box.width;"
        f" return [...canvas.getContext('2d').getImageData(({x} - box.x) * s, ({y} - box.y) * s,"
        " 1, 1).data].slice(0, 3); })()"
    )
    return found
