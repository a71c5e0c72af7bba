"""`vitcli attn-map` in a test, and pictures for it."""

import numpy as np
from PIL import Image
from typer.testing import CliRunner

from vitcli.cli.main import app

CLS = {"model.pool": "cls", "model.pos_embed": "learned"}


def vitcli(*words: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["attn-map", *map(str, words)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


def save(name: str, size: tuple[int, int], mode: str = "RGB", **options) -> str:
    rng = np.random.default_rng(1)
    pixels = Image.fromarray(rng.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))
    pixels.convert(mode).save(name, **options)
    return name
