"""Pixels that stay in a memory map on the host. Batches are gathered from it by index.

A training on them sees the same bits as one whose pixels are on the device.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import cast

import torch
from torch import Tensor

AHEAD = 2
"""Number of batches that are gathered before they are needed."""
THREAD = "gather"
"""Start of the threads' names."""


class StoredPixels:
    """Images (N, C, H, W) uint8 that are read as those of a tensor are: ``pixels[index]``.

    They are the images ``index`` (N,) of the memory map ``base`` (M, C, H, W), all by default,
    gathered for ``device``. ``hint`` takes places that will be gathered at once, so that the disk
    can read them together.
    """

    def __init__(
        self,
        base: Tensor,
        index: Tensor | None = None,
        device: torch.device | str = "cpu",
        hint: Callable[[Tensor], object] = lambda _: None,
    ) -> None:
        self.base, self.index = base, torch.arange(len(base)) if index is None else index
        self.device, self.hint = torch.device(device), hint
        self.shape = torch.Size((len(self.index), *base.shape[1:]))
        self._pool: ThreadPoolExecutor | None = None
        self._coming: Iterator[Tensor] = iter(())
        self._gathered: deque[tuple[Tensor, Future[Tensor]]] = deque()

    @property
    def is_cuda(self) -> bool:
        return self.device.type == "cuda"

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, index: Tensor | slice | int) -> Tensor:
        """Return images on the device. The next batch that ``expect`` named is not waited for."""
        if isinstance(index, int):
            return self.gather(self.index[[index]])[0]
        places = self.index[index.cpu() if isinstance(index, Tensor) else index]
        if not (self._gathered and torch.equal(self._gathered[0][0], places)):
            return self.gather(places)
        found = self._gathered.popleft()[1].result()
        self._begin()
        return found

    def gather(self, places: Tensor) -> Tensor:
        """Return the images at some places of the memory map, on the device."""
        self.hint(places)
        images = self.base[places]
        return images.pin_memory().to(self.device, non_blocking=True) if self.is_cuda else images

    def expect(self, batches: Iterable[Tensor]) -> None:
        """Gather the batches of these indices in a thread, each before it is asked for."""
        self._gathered.clear()
        self._coming = iter(batches)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=THREAD)
        for _ in range(AHEAD):
            self._begin()

    def _begin(self) -> None:
        batch = next(self._coming, None)
        if self._pool and batch is not None:
            places = self.index[batch]
            self._gathered.append((places, self._pool.submit(self.gather, places)))
        elif self._pool:  # the thread ends with its work
            self._pool.shutdown(wait=False)

    def split(self, count: int) -> Iterator[Tensor]:
        """Yield ``count`` images at a time, in order."""
        for places in self.index.split(count):
            yield self.gather(places)

    def select(self, index: Tensor | slice) -> "StoredPixels":
        """Return some of the images, without reading them."""
        return self.at(self.index[index.cpu() if isinstance(index, Tensor) else index])

    def at(self, places: Tensor) -> "StoredPixels":
        return StoredPixels(self.base, places, self.device, self.hint)

    def to(self, device: torch.device | str) -> "StoredPixels":
        return StoredPixels(self.base, self.index, device, self.hint)


AnyPixels = Tensor | StoredPixels


def select(pixels: AnyPixels, index: Tensor | slice) -> Tensor:
    """Return the images at some indices; those of a memory map stay there."""
    return as_tensor(pixels.select(index)) if isinstance(pixels, StoredPixels) else pixels[index]


def joined(first: AnyPixels, second: AnyPixels) -> Tensor:
    if isinstance(first, StoredPixels) and isinstance(second, StoredPixels):
        assert second.base is first.base
        return as_tensor(first.at(torch.cat([first.index, second.index])))
    return torch.cat([first[:], second[:]])


def as_tensor(pixels: StoredPixels) -> Tensor:
    """Return stored pixels under the type of what they are used like."""
    return cast(Tensor, pixels)
