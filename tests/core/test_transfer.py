"""Tensors reach the host unchanged, whatever their type, shape and layout."""

import safetensors.torch
import torch

from vitcli.core.transfer import ALIGNMENT, places_in_buffer, to_device, to_host

TENSORS = {
    "matrix": torch.randn(3, 5),
    "scalar": torch.tensor(7.0, dtype=torch.float64),
    "empty": torch.empty(0, 4),
    "bytes": torch.arange(13, dtype=torch.uint8),
    "half": torch.randn(3, dtype=torch.bfloat16),
    "transposed": torch.arange(6).view(2, 3).t(),
    "truths": torch.tensor([True, False, True]),
    "trained": torch.nn.Parameter(torch.randn(2)),
}


def test_tensors_share_a_buffer_without_overlaps():
    places = places_in_buffer(TENSORS)
    for name, place in places.items():
        assert place.data_ptr() % min(ALIGNMENT, place.element_size()) == 0
        place.copy_(TENSORS[name].detach())
    assert len({place.untyped_storage().data_ptr() for place in places.values()}) == 1
    for name, place in places.items():
        assert place.dtype == TENSORS[name].dtype
        assert torch.equal(place, TENSORS[name]), name
    stored = safetensors.torch.load(safetensors.torch.save(places))
    assert all(torch.equal(stored[name], TENSORS[name]) for name in TENSORS)


def test_tensors_of_a_cpu_are_not_copied():
    assert [tensor.data_ptr() for tensor in to_host(TENSORS).values()] == [
        tensor.data_ptr() for tensor in TENSORS.values()
    ]
    assert not to_host(TENSORS)["trained"].requires_grad
    there = to_device(TENSORS, torch.device("cpu"))
    assert all(there[name] is tensor for name, tensor in TENSORS.items())
