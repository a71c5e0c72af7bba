"""Draws of an epoch, made in a thread while the epoch before it is trained."""

from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor

from vitcli.core.data.batches import Rows

THREAD = "epoch-draws"
"""Start of the threads' names."""


class DrawnAhead:
    """Draws epochs before they are needed. Each has its own thread, which ends with the draw.

    Args:
        draw: A pure function. It may be called in a thread.
    """

    def __init__(self, draw: Callable[..., Rows]) -> None:
        self._draw = draw
        self._drawn: dict[tuple[Hashable, ...], Future[Rows]] = {}

    def start(self, *key: Hashable) -> None:
        """Begin ``draw(*key)`` in a thread."""
        pool = ThreadPoolExecutor(1, thread_name_prefix=THREAD)
        self._drawn[key] = pool.submit(self._draw, *key)
        pool.shutdown(wait=False)  # the thread finishes its draw and ends

    def take(self, *key: Hashable) -> Rows:
        """Return ``draw(*key)``, and raise what it raised. It is drawn now if it was not begun."""
        drawn = self._drawn.pop(key, None)
        return drawn.result() if drawn else self._draw(*key)
