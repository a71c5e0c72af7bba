"""`--trace`: the time of each operator in a benchmark, as a trace and as a table of ten rows."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.autograd import DeviceType

STEPS = 5
DESCRIPTIONS = {
    "mm": "matrix products",
    "addmm": "matrix products of linear layers",
    "linear_pointwise": "matrix products of linear layers",
    "bmm": "batched matrix products (attention)",
    "copy_": "copies and conversions of type",
    "softmax": "softmax",
    "native_layer_norm": "LayerNorm",
    "gelu": "GELU",
    "sum": "sums (such as gradients of biases)",
    "add": "additions",
    "add_": "additions in place",
    "mul": "multiplications",
    "mul_": "multiplications in place (such as clipping)",
    "cat": "joining tensors",
    "index": "picking images by index",
    "fill_": "filling with a constant (such as zeros)",
    "fused_adamw_": "AdamW's update",
    "linalg_vector_norm": "norms (of gradients)",
    "convolution": "convolutions",
    "mkldnn_convolution": "convolutions",
    "max_pool2d_with_indices": "max-pooling",
    "scaled_dot_product_flash_attention_for_cpu": "fused attention",
    "flash_attention_forward": "fused attention",
    "flash_attention_backward": "fused attention, backward",
    "efficient_attention_forward": "fused attention",
    "efficient_attention_backward": "fused attention, backward",
    "Attention": "attention, native kernel",
    "LinearBackward": "gradients of weights and biases, native kernel",
    "AddNorm": "residual sum and LayerNorm, native kernel",
    "Gelu": "GELU, native kernel",
}


def profile(steps: Iterator[Any], device: torch.device, trace: Path) -> list[dict[str, Any]]:
    """Run a few steps, write a trace for chrome://tracing, and return the costliest operators."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    next(steps)
    with torch.profiler.profile(activities=activities, acc_events=True) as profiler:
        for _ in range(STEPS):
            next(steps)
    profiler.export_chrome_trace(str(trace))
    return costliest(profiler.key_averages(), on_gpu=device.type == "cuda")


def costliest(averages: Iterable[Any], *, on_gpu: bool) -> list[dict[str, Any]]:
    """Return the rows of ``profile`` from the averages of torch's profiler.

    On a GPU, each kernel is recorded twice: by itself, and with the operator that started it. The
    total is that of the kernels; the rows are the operators, or the kernels if a CUDA graph started
    most of them.
    """

    def own_time(event: Any) -> float:
        return float(event.self_device_time_total if on_gpu else event.self_cpu_time_total)

    events, kernels = list[Any](), list[Any]()
    for event in averages:
        if event.device_type == DeviceType.CPU:
            events.append(event)
        elif not event.is_user_annotation:
            kernels.append(event)
    total = sum(map(own_time, kernels if on_gpu else events)) or 1.0
    if on_gpu and sum(map(own_time, events)) < total / 2:
        events = kernels
    events.sort(key=own_time, reverse=True)
    return [
        {
            "operator": event.key,
            "words": describe_operator(event.key),
            "share": own_time(event) / total,
            "seconds": own_time(event) / 1e6 / STEPS,
            "calls": event.count / STEPS,
        }
        for event in events[:10]
    ]


def describe_operator(operator: str) -> str:
    name = operator.rpartition("::")[2].lstrip("_")
    if name in DESCRIPTIONS:
        return DESCRIPTIONS[name]
    forward = re.sub("_?[bB]ackward(_data)?$", "", name)
    return f"{DESCRIPTIONS[forward]}, backward" if forward in DESCRIPTIONS else operator
