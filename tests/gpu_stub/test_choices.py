"""What torch chooses on the stub GPU: attention kernels, and memory."""

from tests.gpu_stub.memory import CASES
from tests.gpu_stub.steps import one_of_each_kind
from tests.gpu_stub.stub import ask_once

ALLOWED = (0.75, 1.25)
"""Smallest and largest estimate of the memory, divided by the allocator's peak."""


CODE = """import json
from tests.gpu_stub import choices, memory
print(json.dumps([choices.kernels_of_all(), memory.all_peaks()]))
"""


def test_attention_takes_a_fused_kernel():
    found, _ = ask_once("choices", CODE)
    assert found.keys() == {*one_of_each_kind()}
    assert {name: row for name, row in found.items() if "math" in str(row)} == {}
    assert {name for name, row in found.items() if not any(row.values())} == {
        *("cifar10-convnet", "cifar10-resnet18")
    }
    assert found["cifar10-plain"]["fp32"] == ["efficient"]  # the only fused kernel for fp32


def test_the_estimated_memory_is_near_the_peak():
    _, found = ask_once("choices", CODE)
    least, most = ALLOWED
    assert len(found) == len(CASES)
    assert [case for case in found if not least <= case[-1] <= most] == []
