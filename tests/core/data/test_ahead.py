"""An epoch that is drawn in a thread is the epoch that would be drawn without it."""

import threading

import pytest
import torch

from vitcli.core.data.ahead import THREAD, DrawnAhead


def draw(number: int) -> dict[str, torch.Tensor]:
    name = threading.current_thread().name
    return {"number": torch.tensor(number), "is_ahead": torch.tensor(name.startswith(THREAD))}


def drawing_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(THREAD)]


def test_a_draw_that_was_started_comes_from_a_thread():
    drawn = DrawnAhead(draw)
    drawn.start(3)
    assert not drawn.take(2)["is_ahead"]
    assert drawn.take(3) == {"number": torch.tensor(3), "is_ahead": torch.tensor(True)}
    assert not drawn.take(3)["is_ahead"]


def test_an_error_in_the_thread_is_raised_where_the_draw_is_needed():
    def fail(number: int) -> dict[str, torch.Tensor]:
        raise ValueError(f"no epoch {number}")

    drawn = DrawnAhead(fail)
    drawn.start(5)
    with pytest.raises(ValueError, match="no epoch 5"):
        drawn.take(5)


def test_a_thread_ends_although_nobody_takes_its_draw():
    may_go = threading.Event()

    def wait_and_draw(number: int) -> dict[str, torch.Tensor]:
        may_go.wait()
        return draw(number)

    DrawnAhead(wait_and_draw).start(1)
    (thread,) = drawing_threads()
    may_go.set()
    thread.join()
    assert not drawing_threads()
