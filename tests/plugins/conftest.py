"""Fixtures of the plugins' tests."""

from pathlib import Path

import pytest

from tests.conftest import draw_pictures


@pytest.fixture
def few_pictures(here) -> Path:
    """As ``pictures``, with 10 training and 3 test pictures of each class."""
    return draw_pictures(here, 10, 3)


@pytest.fixture
def hub(here, monkeypatch) -> Path:
    """The cache of the Hub."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(here / "hub"))
    return here / "hub"
