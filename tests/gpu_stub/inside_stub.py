"""The stub GPU itself. ``test_errors.py`` runs these tests in a process on the stub."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.gpu_stub.counting import counting


@pytest.fixture
def ones() -> Tensor:
    return torch.ones(1000, device="cuda")


def test_copies_are_counted_by_direction_and_line(ones):
    host = torch.zeros(1000)
    with counting() as seen:
        ones.copy_(host)
        ones.cpu()
        ones.clone()
    assert seen.count("h2d") == seen.count("d2h") == 1
    assert seen.bytes("h2d") == 4000
    assert seen.count("launch", "d2d") == 1
    assert seen.count("sync") == 2
    assert {place.partition(":")[0] for _, place in seen.places} == {"inside_stub.py"}


def test_copies_from_pinned_memory_are_told_from_others(ones):
    with counting() as seen:
        ones.copy_(torch.zeros(1000), non_blocking=True)
    assert (seen.count("h2d"), seen.count("sync"), seen.count("unpinned")) == (1, 0, 1)
    pinned = torch.zeros(2000).pin_memory()
    assert pinned.is_pinned()
    with counting() as seen:
        ones.copy_(pinned[1000:], non_blocking=True)
    assert (seen.count("h2d"), seen.count("sync"), seen.count("unpinned")) == (1, 0, 0)


def on_legacy_stream(ones: Tensor) -> None:
    with torch.cuda.stream(torch.cuda.default_stream()):
        _ = ones + 1


def wait_for_outside_work(ones: Tensor) -> None:
    torch.cuda.current_stream().wait_event(OUTSIDE[0])


def capture(work: Callable[[], object]) -> None:
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        work()


OUTSIDE: list[torch.cuda.Event] = []
FORBIDDEN: dict[str, Callable[[Tensor], object]] = {
    "read a number": lambda ones: ones.sum().item(),
    "copy to the host": lambda ones: ones.cpu(),
    "copy from the host": lambda ones: ones.copy_(torch.zeros(1000), non_blocking=True),
    "wait for the device": lambda ones: torch.cuda.synchronize(),
    "wait for the stream": lambda ones: torch.cuda.current_stream().synchronize(),
    "legacy stream": on_legacy_stream,
    "work before the capture": wait_for_outside_work,
}


@pytest.mark.parametrize("name", FORBIDDEN)
def test_a_capture_refuses_what_cuda_refuses(ones, name):
    outside = torch.cuda.Event()
    outside.record()
    OUTSIDE[:] = [outside]
    with pytest.raises(RuntimeError, match="captur"):
        capture(lambda: (ones + 1, FORBIDDEN[name](ones)))  # torch warns of an empty graph
    with counting() as seen:
        capture(lambda: ones + 1)  # the next capture works
    assert seen.count("captured") == 1
