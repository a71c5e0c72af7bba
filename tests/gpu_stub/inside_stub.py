"""The stub GPU itself. ``test_stub.py`` runs these tests in a process on the stub."""

import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.gpu_stub.counting import counting, fail_next


@pytest.fixture
def ones() -> Tensor:
    return torch.ones(1000, device="cuda")


def test_it_says_that_it_is_an_h100():
    found = torch.cuda.get_device_properties(0)
    assert "H100" in found.name
    assert "stub" in found.name
    assert (found.major, found.minor, found.multi_processor_count) == (9, 0, 132)
    assert 79 * 2**30 < found.total_memory < 80 * 2**30
    assert torch.cuda.device_count() == 1
    assert torch.cuda.is_bf16_supported(including_emulation=False)


def test_launches_are_counted_by_the_name_of_the_kernel(ones):
    with counting() as seen:
        _ = ones + 1
        _ = ones + 2
    assert seen.count("launch") == 2
    assert all("elementwise" in name for name in seen.names("launch"))
    with counting() as seen:
        pass
    assert not seen.calls


def test_products_and_convolutions_are_launches():
    square, image = torch.ones(64, 64, device="cuda"), torch.ones(2, 3, 8, 8, device="cuda")
    filters = torch.ones(4, 3, 3, 3, device="cuda")
    with counting() as seen:
        _ = square @ square
        _ = torch.nn.functional.conv2d(image, filters)
    assert any("blas" in name for name in seen.names("launch"))
    assert any("cudnn" in name for name in seen.names("launch"))


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
    assert (seen.count("h2d"), seen.count("sync"), seen.unpinned) == (1, 0, 1)
    pinned = torch.zeros(2000).pin_memory()
    assert pinned.is_pinned()
    with counting() as seen:
        ones.copy_(pinned[1000:], non_blocking=True)
    assert (seen.count("h2d"), seen.count("sync"), seen.unpinned) == (1, 0, 0)


def test_numbers_are_zero_and_truths_are_true(ones):
    assert ones.sum().item() == 0
    assert (ones == 1).all()
    assert ones.isfinite().all()


def test_counts_of_other_threads_are_seen(ones):
    worker = threading.Thread(target=lambda: ones + 1)
    with counting() as seen:
        worker.start()
        worker.join()
    assert seen.count("launch") == 1


def test_a_captured_kernel_runs_only_with_its_graph(ones):
    weight = torch.ones(1000, device="cuda", requires_grad=True)
    graph = torch.cuda.CUDAGraph()
    with counting() as seen, torch.cuda.graph(graph):
        (weight * ones).sum().backward()  # autograd has threads of its own
    assert seen.count("launch", "graph_launch") == 0
    captured = seen.count("captured")
    assert captured > 2
    with counting() as seen:
        graph.replay()
        graph.replay()
    assert seen.count("graph_launch") == 2
    assert seen.count("launch", "sync", "h2d") == 0
    (name,) = seen.names("graph_launch")
    assert "kernels" in name


def test_a_stream_that_waits_for_the_capture_joins_it(ones):
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with counting() as seen, torch.cuda.graph(graph):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            _ = ones + 1
        torch.cuda.current_stream().wait_stream(side)
    assert seen.count("captured") == 1
    assert seen.count("launch") == 0


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


def test_a_call_fails_on_order(ones):
    fail_next("h2d", 46, after=2)
    _ = torch.zeros(3).cuda()
    with pytest.raises(RuntimeError, match="busy or unavailable"):
        torch.zeros(3).cuda()
    _ = torch.zeros(3).cuda()
    fail_next("launch", 1)
    with pytest.raises(RuntimeError, match="invalid argument"):
        _ = ones + 1


def test_too_much_memory_is_refused_and_freed_memory_returns():
    for _ in range(3):
        block = torch.empty(60 * 2**30, dtype=torch.uint8, device="cuda")
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(60 * 2**30, dtype=torch.uint8, device="cuda")
        del block
    torch.cuda.empty_cache()
