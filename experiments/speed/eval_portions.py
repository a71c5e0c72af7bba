"""Compare batch sizes from 50 to 1000 images for an evaluation on a CPU.

Usage: python experiments/speed/eval_portions.py [THREADS]
The batch sizes take turns, A B C ... Speeds are medians of seven rounds, relative to batches of
500. ``vitcli.runner.evaluate.logits.BATCHES`` is based on this measurement. The model is that of
the study ablation-quickstart.
"""

import statistics
import sys
import time

import torch

from vitcli.core.metrics.classification import compute_logits
from vitcli.core.models.vit import build_vit
from vitcli.core.spec import VitSpec
from vitcli.runner.machine.device import cpu_name, pick_precision
from vitcli.runner.machine.kernels import choose_kernels

ROUNDS, IMAGES = 7, 2000
BATCH_SIZES = (50, 100, 250, 500, 1000)
SPEC = VitSpec(
    img_size=(32, 32), in_chans=3, num_classes=10, embed_dim=64, depth=3, num_heads=4, mlp_ratio=2.0
)


def main() -> None:
    torch.set_num_threads(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
    cpu = torch.device("cpu")
    model = build_vit(SPEC)
    choose_kernels(model, cpu, pick_precision("auto", cpu))  # as after a training step
    images = torch.randn(IMAGES, 3, 32, 32)
    seconds: dict[int, list[float]] = {size: [] for size in BATCH_SIZES}
    for turn in range(ROUNDS + 1):  # the first is a warm-up
        for size in BATCH_SIZES:
            batches = [{"images": part} for part in images.split(size)]
            began = time.perf_counter()
            compute_logits(model, batches)
            if turn:
                seconds[size].append(time.perf_counter() - began)
    base = statistics.median(seconds[500])
    print(f"{cpu_name()}, {torch.get_num_threads()} threads, torch {torch.__version__}")  # noqa: T201
    for size, values in seconds.items():
        print(f"batches of {size}: {base / statistics.median(values):.2f} times as fast")  # noqa: T201


if __name__ == "__main__":
    main()
