"""`vitcli bench inference`: images per second and delay of a model, by batch size."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from vitcli.core.torch_use import autocast_to
from vitcli.runner.experiment.build import encoder_of, new_module
from vitcli.runner.machine.arithmetic import arithmetic
from vitcli.runner.machine.device import pick_precision
from vitcli.runner.machine.resources import resource_errors
from vitcli.runner.speed.clock import turns
from vitcli.runner.speed.workload import Workload

BATCHES = (1, 8, 64, 256)


@resource_errors()
def bench_inference(work: Workload, *, rounds: int, seconds: float) -> dict[str, Any]:
    """Forward passes in inference mode: in fp32, as ``vitcli eval`` runs, and as in training."""
    plain = encoder_of(work.spec, new_module(work.spec)).to(work.device)  # as load_model does
    models = {"fp32": plain.eval()}
    models.setdefault(work.built.precision, work.built.encoder.eval())
    images = torch.randn(max(BATCHES), *work.image_shape, device=work.device)

    def forward(count: int, precision: str) -> None:
        autocast = autocast_to(work.device, pick_precision(precision, work.device))
        with torch.inference_mode(), arithmetic(precision), autocast:
            models[precision](images[:count])

    works: dict[str, Callable[[], object]] = {
        f"{precision} {count}": partial(forward, count, precision)
        for precision in models
        for count in BATCHES
    }
    times = turns(works, work.device, rounds=rounds, seconds=seconds)
    rows = [
        {
            "precision": name.split()[0],
            "batch_size": int(name.split()[1]),
            "seconds": spread.median,
            "images_per_second": int(name.split()[1]) / spread.median,
        }
        for name, spread in times.items()
    ]
    return {
        "benchmark": "inference",
        "setting": work.setting,
        "experiment": work.name,
        "rows": rows,
    }
