"""The order of the classes in a head that another program trained."""

from collections.abc import Callable, Sequence

from torch import Tensor

from vitcli.runner.errors import ConfigError
from vitcli.runner.text import natural_key

NATURAL = "natural"
MAX_CLASSES = 4
"""Number of classes that a note shows of each order."""


def natural_order(names: Sequence[str]) -> list[str]:
    """Return class folders in the order of timm: numbers by size, without regard to case."""
    return sorted(names, key=lambda name: natural_key(name.lower()))


def fit_class_order(
    weights: dict[str, Tensor],
    names: Sequence[str],
    order: str | None,
    on_message: Callable[[str], None],
) -> None:
    """Bring the rows of a head into the order of the data set's classes.

    Args:
        names: The classes of the data set, in its order; none if the head has its order.
        order: The order in the head: ``natural``, or all names with commas between them. None: the
            order of the data set; then a note says where timm's would differ.
    """
    if order is not None and not names:
        raise ConfigError("--class-order is for a head of another program, and there is none")
    natural = natural_order(names)
    if order is None:
        if [*names] == sorted(names) != natural:  # so these are class folders
            on_message(
                f"note: the head's classes are taken in the order {_first(names)}. timm sorts"
                f" class folders as {_first(natural)}; for weights that timm trained, add"
                f" --class-order {NATURAL}"
            )
        return
    theirs = natural if order == NATURAL else [name.strip() for name in order.split(",")]
    if sorted(theirs) != sorted(names):
        raise ConfigError(
            f"--class-order takes {NATURAL!r}, or each of these once: {','.join(names)}"
        )
    _reorder(weights, theirs, names)


def fit_stated_classes(
    weights: dict[str, Tensor],
    names: Sequence[str],
    theirs: Sequence[str],
    on_message: Callable[[str], None],
) -> None:
    """Bring the rows of a head into the order of the data set, by the classes that it states.

    If they are others, the rows stay, and a note says so.
    """
    if sorted(theirs) == sorted(names):
        _reorder(weights, theirs, names)
    elif names:
        on_message(
            f"note: the head has the classes {_first(theirs)}, the data set has {_first(names)};"
            " they are taken in this order; if it is another one, add --class-order"
        )


def _reorder(weights: dict[str, Tensor], theirs: Sequence[str], names: Sequence[str]) -> None:
    rows = [theirs.index(name) for name in names]
    for name, tensor in weights.items():
        if name.startswith("head.") and len(tensor) == len(names):
            weights[name] = tensor[rows]


def _first(names: Sequence[str]) -> str:
    more = ", ..." if len(names) > MAX_CLASSES else ""
    return ", ".join(names[:MAX_CLASSES]) + more
