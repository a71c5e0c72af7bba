"""Compare three ways of training one small model with several random seeds.

Usage: python experiments/speed/many_trials.py [SEEDS] [--device cuda] [--rounds 7] [-o FILE.json]
The ways take turns, A B C A B C ... Speeds are medians of the rounds: images per second over all
seeds, relative to the sequential way.
  sequential  one seed after the other, as in a worker of a study
  stacked     one model with stacked weights: torch.func.stack_module_state and vmap
  together    a thread for each seed (on a GPU also a stream for each)
The trials of a study run in processes. On a CPU "together" is an upper limit of their speed.
"""

import argparse
import json
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, stack_module_state, vmap
from torch.nn.functional import cross_entropy

from vitcli.core.models.vit import build_vit
from vitcli.core.nn.attention import SelfAttention
from vitcli.core.spec import VitSpec
from vitcli.core.torch_use import autocast_to
from vitcli.runner.machine.device import hardware, name_precision, pick_device, pick_precision

STEPS, BATCH = 3, 128
SPEC = VitSpec(
    img_size=(32, 32), in_chans=3, num_classes=10, embed_dim=64, depth=5, num_heads=4, mlp_dim=64
)  # fmt: skip
Models = list[torch.nn.Module]


def models(count: int, device: torch.device) -> Models:
    built = [build_vit(SPEC).to(device) for _ in range(count)]
    for model in built:
        for module in model.modules():
            if isinstance(module, SelfAttention):
                module.attend.fused = False  # the choice for bf16 on a CPU; it also works with vmap
    return list(built)


def one_seed(
    model: torch.nn.Module, batch: tuple[Tensor, Tensor], dtype: Any
) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    images, labels = batch

    def step() -> None:
        for _ in range(STEPS):
            with autocast_to(images.device, dtype):
                loss = cross_entropy(model(images).float(), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return step


def sequential(built: Models, batch: tuple[Tensor, Tensor], dtype: Any) -> Callable[[], None]:
    steps = [one_seed(model, batch, dtype) for model in built]

    def step_all() -> None:
        for step in steps:
            step()

    return step_all


def together(built: Models, batch: tuple[Tensor, Tensor], dtype: Any) -> Callable[[], None]:
    steps = [one_seed(model, batch, dtype) for model in built]
    streams = [torch.cuda.Stream() for _ in steps] if batch[0].is_cuda else [None] * len(steps)

    def run(step: Callable[[], None], stream: Any) -> None:
        with torch.cuda.stream(stream):
            step()

    def step_all() -> None:
        pairs = zip(steps, streams, strict=True)
        threads = [threading.Thread(target=run, args=pair) for pair in pairs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return step_all


def stacked(built: Models, batch: tuple[Tensor, Tensor], dtype: Any) -> Callable[[], None]:
    params, buffers = stack_module_state(built)
    optimizer = torch.optim.AdamW(params.values(), foreach=True)
    images, labels = batch

    def loss(params: Any, buffers: Any, images: Tensor) -> Tensor:
        with autocast_to(images.device, dtype):
            logits = functional_call(built[0], (params, buffers), (images,))
        return cross_entropy(logits.float(), labels)

    each = vmap(grad_and_value(loss), in_dims=(0, 0, None), randomness="different")

    def step() -> None:
        for _ in range(STEPS):
            grads, _ = each(params, buffers, images)
            for name, param in params.items():
                param.grad = grads[name]
            optimizer.step()

    return step


WAYS = {"sequential": sequential, "stacked": stacked, "together": together}


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare three ways of training several seeds")
    parser.add_argument("seeds", type=int, nargs="?", default=3)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    count, device = options.seeds, pick_device(options.device)
    precision = name_precision("auto", device)
    dtype = pick_precision(precision, device)
    batch = (
        torch.randn(BATCH, 3, 32, 32, device=device),
        torch.randint(10, (BATCH,), device=device),
    )
    ways = {name: make(models(count, device), batch, dtype) for name, make in WAYS.items()}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(options.rounds + 1):  # the first is a warm-up
        for name, step in ways.items():
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
            step()
            if device.type == "cuda":
                torch.cuda.synchronize()
            if turn:
                seconds[name].append(time.perf_counter() - began)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    found = {name: medians["sequential"] / median for name, median in medians.items()}
    setting = f"{hardware(device)}, {precision}, torch {torch.__version__}"
    print(f"{setting}, {count} seeds")  # noqa: T201
    for name, ratio in found.items():
        print(f"{name}: {ratio:.2f} times as fast")  # noqa: T201
    if options.output:
        result = {"setting": setting, "seeds": count, "times_as_fast": found, "seconds": seconds}
        options.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
