"""A run with a CLS token, for the commands that draw attention."""

from pathlib import Path

import pytest

from tests.cli.map_pictures import CLS


@pytest.fixture
def mapped_run(copy_of_run, here) -> Path:
    """A model with a CLS token on 8x8 pictures of two classes: a grid of 2x2, 2 layers, 2 heads."""
    return copy_of_run(here / "runs" / "mapped", CLS | {"train.epochs": 1})
