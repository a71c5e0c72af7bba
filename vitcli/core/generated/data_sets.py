"""The data sets that vitcli draws itself, by name."""

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

from vitcli.core.data.source import Images
from vitcli.core.generated import drawing, gratings, scenes, shapes


@dataclass(frozen=True, kw_only=True)
class GeneratedSet:
    """``draw`` takes the numbers of training and test images. ``code`` holds all that draws."""

    class_names: tuple[str, ...]
    draw: Callable[[int, int], tuple[Images, Images]]
    code: tuple[ModuleType, ...]


GENERATED_SETS = {
    "scenes": GeneratedSet(
        class_names=scenes.CLASS_NAMES,
        draw=scenes.scenes,
        code=(scenes, drawing),
    ),
    "shapes": GeneratedSet(
        class_names=shapes.CLASS_NAMES,
        draw=shapes.shapes,
        code=(shapes, drawing),
    ),
    "gratings": GeneratedSet(
        class_names=gratings.CLASS_NAMES,
        draw=gratings.gratings,
        code=(gratings, drawing),
    ),
}
