"""The data sets that vitcli draws itself, by name."""

from collections.abc import Callable
from types import ModuleType
from typing import NamedTuple

from vitcli.core.data.source import Images
from vitcli.core.generated import drawing, gratings, scenes, shapes


class GeneratedSet(NamedTuple):
    """``draw`` takes the numbers of training and test images. ``code`` holds all that draws."""

    class_names: tuple[str, ...]
    draw: Callable[[int, int], tuple[Images, Images]]
    code: tuple[ModuleType, ...]


GENERATED_SETS = {
    "scenes": GeneratedSet(scenes.CLASS_NAMES, scenes.scenes, (scenes, drawing)),
    "shapes": GeneratedSet(shapes.CLASS_NAMES, shapes.shapes, (shapes, drawing)),
    "gratings": GeneratedSet(gratings.CLASS_NAMES, gratings.gratings, (gratings, drawing)),
}
