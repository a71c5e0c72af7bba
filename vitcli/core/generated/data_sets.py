"""The data sets that vitcli draws itself: each name of ``GENERATED`` is a module of this folder."""

import importlib
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import NamedTuple

from vitcli.core.data.source import Images
from vitcli.core.generated import drawing


class GeneratedSet(NamedTuple):
    """``draw`` takes the numbers of training and test images. ``code`` holds all that draws."""

    class_names: tuple[str, ...]
    draw: Callable[..., tuple[Images, Images]]
    code: tuple[ModuleType, ...]


def generated_set(name: str) -> GeneratedSet:
    module = importlib.import_module(f"{__package__}.{name}")
    draw = partial(drawing.draw_splits, tuple(module.CLASSES.values()), module.draw)
    return GeneratedSet(tuple(module.CLASSES), draw, (module, drawing))
