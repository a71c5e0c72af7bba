"""Compiled C files, and calls of their functions."""

import ctypes
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Argument = Tensor | int | float | None


class Kernels:
    """The compiled C files: one shared library for each file and size, opened at the first use.

    ``open_library`` compiles ``<source>.c`` with the given sizes as macros.
    """

    def __init__(self, open_library: Callable[[str, dict[str, int]], ctypes.CDLL]) -> None:
        self._open = open_library
        self._libraries: dict[tuple[str, tuple[int, ...]], ctypes.CDLL] = {}

    def compiled(self, source: str, **sizes: int) -> ctypes.CDLL:
        key = (source, tuple(sizes.values()))
        if key not in self._libraries:
            self._libraries[key] = self._open(source, sizes)
        return self._libraries[key]


def call_function(function: Any, *arguments: Argument) -> None:
    """Call a C function. Tensors become pointers, integers become long; threads come last."""
    function(*map(_c_value, arguments), ctypes.c_int(torch.get_num_threads()))


def _c_value(value: Argument) -> Any:
    if isinstance(value, Tensor):
        assert value.is_contiguous()
        return ctypes.c_void_p(value.data_ptr())
    if isinstance(value, float):
        return ctypes.c_float(value)
    return None if value is None else ctypes.c_long(value)


def count_bytes(function: Any, *sizes: int) -> int:
    """Return the bytes of scratch memory for one thread, which a C function computes from sizes."""
    function.restype = ctypes.c_long
    return int(function(*map(ctypes.c_long, sizes)))


def allocate_scratch(function: Any, *sizes: int) -> Tensor:
    """Return zeroed scratch memory for all threads. torch aligns it to 64 bytes."""
    num_bytes = torch.get_num_threads() * count_bytes(function, *sizes)
    return torch.zeros(num_bytes, dtype=torch.uint8)
