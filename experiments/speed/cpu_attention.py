"""Compare fused with plain attention, in fp32 and in bf16, in whole training steps on a CPU.

Usage: python experiments/speed/cpu_attention.py
The four kinds take turns, A B C D A B C D ... Speeds are medians of seven rounds, relative to fp32
with fused attention. ``choose_kernels`` and ``--precision auto`` are based on this measurement.
"""

import itertools
import statistics
import time
from collections.abc import Iterator

import torch

from vitcli.core.models.vit import build_vit
from vitcli.core.nn.attention import SelfAttention
from vitcli.core.objectives.classify import Classify
from vitcli.core.spec import ExperimentSpec, TrainSpec, VitSpec
from vitcli.core.train.training import Step, Training
from vitcli.runner.machine.device import computes_bf16, cpu_name, this_processor
from vitcli.runner.train.flops import random_data, with_statistics

ROUNDS, STEPS, BATCH = 7, 4, 128
SPEC = VitSpec(
    img_size=(32, 32), in_chans=3, num_classes=10, embed_dim=64, depth=5, num_heads=1, mlp_dim=64
)


def training(dtype: torch.dtype | None, fused: bool) -> Iterator[Step]:
    model = build_vit(SPEC)
    for module in model.modules():
        if isinstance(module, SelfAttention):
            module.attend.fused = fused
    train = TrainSpec(batch_size=BATCH)
    spec = with_statistics(ExperimentSpec(model=SPEC, train=train))
    data = random_data(spec, BATCH * STEPS, torch.device("cpu"))
    steps = Training(spec, Classify(spec, model), data, dtype).run_epoch
    return itertools.chain.from_iterable(map(steps, itertools.count()))


def main() -> None:
    kinds = {
        f"{name} {kernel}": training(dtype, kernel == "fused")
        for name, dtype in (("fp32", None), ("bf16", torch.bfloat16))
        for kernel in ("fused", "plain")
    }
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    for turn in range(ROUNDS + 1):  # the first is a warm-up
        for kind, steps in kinds.items():
            began = time.perf_counter()
            for _ in range(STEPS):
                next(steps)
            if turn:
                seconds[kind].append(time.perf_counter() - began)
    base = statistics.median(seconds["fp32 fused"])
    bf16 = "bf16 in hardware" if computes_bf16(this_processor()) else "bf16 emulated"
    print(f"{cpu_name()}, {torch.get_num_threads()} threads, {bf16}, torch {torch.__version__}")  # noqa: T201
    for kind, values in seconds.items():
        print(f"{kind}: {base / statistics.median(values):.2f} times as fast")  # noqa: T201


if __name__ == "__main__":
    main()
