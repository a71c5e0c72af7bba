"""A function of tensors that is replayed as one CUDA graph.

A training step of a small model is hundreds of kernels of a few microseconds each. Launching them
one by one takes longer than computing them; a CUDA graph launches all of them at once. A graph
reads and writes the same addresses in every replay. Therefore whatever changes from step to step
lies in tensors with fixed addresses, and the host must not decide anything inside the function.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor
from torch.optim import Optimizer

from vitcli.core.randomness import default_generator

Tensors = Mapping[str, Tensor]
Function = Callable[..., dict[str, Tensor]]
Key = tuple[tuple[str, int], ...]
"""Names and addresses of the tensors that a graph reads."""
WARM_UP = 3
"""Number of eager calls before a capture: libraries and optimisers allocate in their first calls.
The calls are steps like all others. They give the bits of a replay, because the same kernels
compute them from the same tensors; so a resumed training, which warms up again, changes nothing."""


class Graphs:
    """Calls a function eagerly at first, then as one CUDA graph for each set of inputs.

    The function calls these optimisers. If it cannot be captured, it is called eagerly.
    """

    def __init__(self, optimizers: Sequence[Optimizer], on_message: Callable[[str], None]) -> None:
        self.optimizers, self.on_message = optimizers, on_message
        self.is_refused = False
        self.device = optimizers[0].param_groups[0]["params"][0].device
        self._stream = torch.cuda.Stream(self.device)
        self._pool = torch.cuda.graph_pool_handle()
        self._calls: Counter[Key] = Counter()
        self._captured: dict[Key, tuple[torch.cuda.CUDAGraph, dict[str, Tensor]]] = {}
        self._kept: dict[tuple[str, torch.Size, torch.dtype], Tensor] = {}

    def fill(self, values: Tensors) -> dict[str, Tensor]:
        """Copy values into tensors with fixed addresses, one for each name, shape and type."""
        found = {}
        for name, value in values.items():
            key = name, value.shape, value.dtype
            if key not in self._kept:
                self._kept[key] = torch.empty_like(value, device=self.device)
            if not value.is_cuda:
                value = value.pin_memory()
            found[name] = self._kept[key].copy_(value, non_blocking=True)
        return found

    def __call__(self, function: Function, *inputs: Tensors) -> dict[str, Tensor]:
        """Call the function, always the same one. The caller seeds the generator of the device.

        The next call overwrites the tensors that it returns. ``inputs`` are what ``fill`` returned.
        """
        key = tuple((name, each.data_ptr()) for part in inputs for name, each in part.items())
        if not self.is_refused and key not in self._captured and self._calls[key] == WARM_UP:
            self._capture(key, partial(function, *inputs))
        if key in self._captured:
            graph, found = self._captured[key]
            graph.replay()
            return found
        self._calls[key] += 1
        caller = torch.cuda.current_stream(self.device)
        self._stream.wait_stream(caller)
        with torch.cuda.stream(self._stream):
            found = function(*inputs)
        caller.wait_stream(self._stream)
        return found

    def forget(self) -> None:
        """Capture the function anew, because it will use other tensors."""
        self._calls.clear()
        self._captured.clear()

    def _capture(self, key: Key, function: Function) -> None:
        graph, caller = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self.device)
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)  # frees memory before the capture needs it
        # Another thread may allocate pinned memory meanwhile, such as for the next epoch.
        mode = "thread_local"
        recording = torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode=mode)
        try:
            with capturable(self.optimizers), recording:
                found = function()
        except Exception as error:  # whatever cannot be captured can be called eagerly
            torch.cuda.set_stream(caller)  # torch 2.11 keeps the stream of the capture
            self._refuse(error)
        else:
            caller.wait_stream(self._stream)  # there, the capture has written its own seed
            self._captured[key] = graph, found

    def _refuse(self, error: BaseException) -> None:
        self.is_refused = True
        self.forget()
        generator = default_generator(self.device)
        # In torch 2.11, a generator that was captured in vain refuses to draw: take a copy of it.
        generator.graphsafe_set_state(generator.clone_state())
        while error.__context__:  # the end of the capture fails too
            error = error.__context__
        reason = str(error).partition("\n")[0]
        self.on_message(f"CUDA graphs failed, training without them: {reason}")


@contextmanager
def capturable(optimizers: Sequence[Optimizer]) -> Iterator[None]:
    """Tell optimisers that they are captured. They warn if they are told so at other times."""
    groups = [g for o in optimizers for g in o.param_groups if "capturable" in g]
    for group in groups:
        group["capturable"] = True
    try:
        yield
    finally:
        for group in groups:
            group["capturable"] = False
