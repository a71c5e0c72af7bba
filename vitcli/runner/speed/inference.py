"""`vitcli bench inference`: images per second and delay of a model, by batch size."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from vitcli.core.train.fit import autocast_to
from vitcli.runner.machine.device import precision_name
from vitcli.runner.machine.resources import resource_errors
from vitcli.runner.speed.clock import turns
from vitcli.runner.speed.workload import Workload

BATCHES = (1, 8, 64, 256)


@resource_errors()
def bench_inference(work: Workload, *, rounds: int, seconds: float) -> dict[str, Any]:
    """Forward passes in inference mode: in fp32, as ``vitcli eval`` runs, and as in training."""
    model = work.encoder.eval()
    types = list(dict.fromkeys([None, work.autocast]))
    images = torch.randn(max(BATCHES), *work.image_shape, device=work.device)

    def forward(count: int, dtype: torch.dtype | None) -> None:
        with torch.inference_mode(), autocast_to(work.device, dtype):
            model(images[:count])

    works: dict[str, Callable[[], object]] = {
        f"{precision_name(dtype)} {count}": partial(forward, count, dtype)
        for dtype in types
        for count in BATCHES
    }
    found = turns(works, work.device, rounds=rounds, seconds=seconds)
    rows = [
        {
            "precision": name.split()[0],
            "batch_size": int(name.split()[1]),
            "seconds": spread.median,
            "images_per_second": int(name.split()[1]) / spread.median,
        }
        for name, spread in found.items()
    ]
    return {
        "benchmark": "inference",
        "setting": work.setting,
        "experiment": work.name,
        "rows": rows,
    }
