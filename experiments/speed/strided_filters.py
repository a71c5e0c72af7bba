"""Compare strided depthwise convolutions in bf16 and in fp32 on a CPU, gradients included.

Usage: python experiments/speed/strided_filters.py [--rounds 5]
The two take turns on one thread. The precision in ``core/nn/mbconv.py`` is based on this
measurement.
"""

import argparse
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor, nn

from vitcli.plugins.bench.training import turns
from vitcli.runner.machine.device import hardware

SIZE = (128, 128, 32, 32)
"""Images, features, rows, columns."""


def run_passes(dtype: torch.dtype) -> None:
    """Run one forward and one backward pass."""
    x: Tensor = IMAGES.to(dtype).requires_grad_()
    FILTERS[dtype](x).sum().backward()


IMAGES = torch.randn(SIZE).contiguous(memory_format=torch.channels_last)
FILTERS = {
    dtype: nn.Conv2d(SIZE[1], SIZE[1], 3, 2, padding=1, groups=SIZE[1], bias=False).to(dtype)
    for dtype in (torch.float32, torch.bfloat16)
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare strided convolutions in bf16 and fp32")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    device = torch.device("cpu")
    works: dict[str, Callable[[], object]] = {
        "fp32": lambda: run_passes(torch.float32),
        "bf16": lambda: run_passes(torch.bfloat16),
    }
    found = turns(works, device, rounds=options.rounds, seconds=0.5)
    ratio = median(found["bf16"]) / median(found["fp32"])
    print(f"{hardware(device)}: bf16 takes {ratio:.1f} times as long as fp32")  # noqa: T201


if __name__ == "__main__":
    main()
