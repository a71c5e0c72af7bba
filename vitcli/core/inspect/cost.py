"""The cost of a model: parameters, operations and memory, computed on "meta" tensors."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

Batch = dict[str, Tensor]


def count_parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def forward_flops(model: nn.Module, image_shape: tuple[int, int, int]) -> int:
    """Return the floating-point operations of the forward pass of one image.

    A multiply-add counts as two operations. torch counts matrix products, convolutions and
    attention, but no element-wise work. The batch has two images because a batch norm in training
    mode refuses one value per channel.
    """
    # Imported here because the import takes 0.1 s, which would delay the first training step.
    from torch.utils.flop_counter import FlopCounterMode

    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        model(torch.empty(2, *image_shape))
    return int(counter.get_total_flops()) // 2


def step_flops(losses: Callable[[Batch], Batch], batch: Batch) -> int:
    """Return the floating-point operations of a training step: forward and backward pass.

    They are counted as in ``forward_flops``, so the optimiser is left out. The model of ``losses``
    is on the device "meta" and computes with plain functions of torch.
    """
    from torch.utils.flop_counter import FlopCounterMode

    on_meta = {name: value.to("meta") for name, value in batch.items()}
    formulas = {torch.ops.aten.convolution_backward: convolution_backward_flops}
    counter = FlopCounterMode(display=False, custom_mapping=formulas)
    with torch.device("meta"), counter:
        losses(on_meta)["loss"].backward()
    return int(counter.get_total_flops())


def convolution_backward_flops(
    grad_shape: Sequence[int],
    x_shape: Sequence[int],
    weight_shape: Sequence[int],
    *rest: Any,
    **_: Any,
) -> int:
    """Return the operations of the gradients of a convolution; ``rest`` as in aten.

    Each gradient, of the input and of the weights, has as many as the forward pass. torch's own
    formula multiplies those of the weights by the number of groups.
    """
    transposed, mask = rest[4], rest[7]
    pixels = (x_shape if transposed else grad_shape)[2:]
    return 2 * grad_shape[0] * math.prod(pixels) * math.prod(weight_shape) * sum(mask[:2])


def activation_bytes(model: nn.Module, image_shape: tuple[int, int, int]) -> int:
    """Return the bytes, without parameters, that autograd keeps for one fp32 image."""
    weights = {p.untyped_storage()._cdata for p in model.parameters()}
    seen: dict[int, int] = {}
    kept: list[Tensor] = []  # keeps addresses unique: freed storage could be reused

    def record(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights:
            seen[storage._cdata] = storage.nbytes()
            kept.append(tensor)
        return tensor

    with saved_tensors_hooks(record, lambda tensor: tensor), torch.device("meta"):
        output = model(torch.empty(2, *image_shape))
    del output
    return sum(seen.values()) // 2
