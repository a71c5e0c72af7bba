"""Models with a native backend: their layers, their training and the kernels that they use."""

import copy
from collections import Counter
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from tests.core.ops.conftest import error
from tests.core.specs import REQUIRED, changed, noisy
from vitcli.core.models.image_model import build_model
from vitcli.core.models.vit import build_vit
from vitcli.core.ops.backend import Backend, UsesBackend, use_backend
from vitcli.runner.machine.device import this_processor
from vitcli.runner.machine.kernels import BACKENDS, choose_kernels

CPU, BF16 = torch.device("cpu"), torch.bfloat16
WIDE: dict[str, Any] = {"embed_dim": 48, "num_heads": 3, "img_size": (16, 16), "patch_size": 4}


@pytest.fixture
def native(native_machine) -> Backend:
    return BACKENDS["amx"]()


def test_a_failed_preparation_does_not_change_the_model():
    def fail(model: nn.Module) -> None:
        raise OSError(f"no compiler for {model.spec.embed_dim}")

    model = build_vit(changed(**WIDE))
    with pytest.raises(OSError, match="48"):
        use_backend(model, Backend(name="broken", prepare=fail))
    users = [part for part in model.modules() if isinstance(part, UsesBackend)]
    assert {part.backend.name for part in users} == {"torch"}


def nodes(result: torch.Tensor) -> Counter[str]:
    found, waiting = set(), [result.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in found:
            found.add(node)
            waiting += [following for following, _ in node.next_functions]
    return Counter(node.name() for node in found)


def kernel_calls(model: nn.Module) -> dict[str, int]:
    """Return the number of calls of each kernel and of additions by torch in a forward pass."""
    with torch.autocast("cpu", BF16):
        found = nodes(model(torch.randn(2, 3, 16, 16)))
    names = ("Linear", "Gelu", "AddNorm", "Attention")
    return {name: found[f"{name}Backward"] for name in names} | {"add": found["AddBackward0"]}


def test_kernels_compute_the_supported_ops(native):
    """In the last of two blocks, torch computes attention and sum for CLS only."""
    model = build_vit(changed(**WIDE)).train()
    assert set(kernel_calls(model).values()) == {0, 5}  # five sums: two per block, and positions
    use_backend(model, native)
    all_calls = {"Linear": 9, "Gelu": 2, "AddNorm": 5, "Attention": 1, "add": 2}
    assert kernel_calls(model) == all_calls  # not the head: 5 classes are no multiple of 16
    # Only a training model uses streams.
    assert kernel_calls(model.eval()) == all_calls | {"add": 5}


@pytest.mark.parametrize(
    ("fields", "calls"),
    [
        ({"residual": "none"}, {"AddNorm": 5, "add": 1}),
        ({"attn_scale": "learned"}, {"Attention": 0}),
        ({"attn_mask_diagonal": True}, {"Attention": 0}),
        ({"attn_drop": 0.1}, {"Attention": 0}),
        ({"attention": "linformer"}, {"Attention": 0}),
        ({"pos_embed": "rope2d", "num_heads": 4}, {"Attention": 1}),
        ({"pool": "mean"}, {"Attention": 2, "add": 1}),
        ({"num_classes": 16}, {"Linear": 10}),
        ({"embed_dim": 24}, {"Linear": 0, "AddNorm": 5}),
        ({"ffn": "depthwise"}, {"Gelu": 3, "Attention": 1}),  # the last block filters no patch
    ],
    ids=str,
)
def test_torch_computes_the_ops_that_kernels_do_not_support(fields, calls, native):
    model = build_vit(changed(**{**WIDE, **fields})).train()
    use_backend(model, native)
    found = kernel_calls(model)
    assert {name: found[name] for name in calls} == calls


VARIANTS = [
    {},
    {"pool": "mean", "pos_embed": "rope2d"},
    {"norm": "rms_norm", "pos_embed": "relative"},
    {"norm_position": "post", "final_norm": True},
    {"residual": "none", "ffn": "relu"},
    {"norm": "none", "ffn": "swiglu"},
    {"ffn": "depthwise", "pool": "mean"},
    {"attn_mask_diagonal": True, "attn_scale": "learned", "attn_clamp": True},
    {"layer_scale_init": 0.1, "qkv_bias": False, "proj_bias": False},
    {"embed_dim": 45, "num_heads": 3},
    {"reg_tokens": 2, "pool": "seq", "num_heads": 1},
    *({"family": family, **fields} for family, fields in REQUIRED.items() if "depths" in fields),
]


@pytest.mark.parametrize("kernels", ["amx", "simd", "half"])
@pytest.mark.parametrize("fields", VARIANTS, ids=str)
def test_a_model_learns_equally_well_with_both_backends(fields, kernels, native_machine):
    if kernels == "half" and not this_processor().avx512_bf16:
        pytest.skip("bf16 kernels of whole branches: this CPU has no AVX512-BF16")
    autocast = None if kernels == "simd" else BF16
    plain = noisy(build_model(changed(**{**WIDE, **fields})), 0.05).train()
    exact, native = copy.deepcopy(plain).double(), copy.deepcopy(plain)
    choose_kernels(plain, CPU, autocast, "torch")
    assert choose_kernels(native, CPU, autocast) == "native"
    if kernels == "half":
        use_backend(native, BACKENDS["half"]())
    images, labels = torch.randn(32, 3, 16, 16), torch.randint(5, (32,))

    def learn(model, dtype):
        with torch.autocast("cpu", BF16, enabled=dtype is BF16):
            logits = model(images.to(torch.float64 if dtype is torch.float64 else torch.float32))
            loss = F.cross_entropy(logits.to(torch.float64), labels)
        loss.backward()
        return torch.cat([p.grad.flatten().double() for p in model.parameters()])

    true = learn(exact, torch.float64)
    torchs, ours = learn(plain, autocast), learn(native, autocast)
    assert 0 < error(torchs, true) < (0.1 if autocast else 1e-5)
    assert error(ours, true) < (1.3 * error(torchs, true) if autocast else 3e-6)


@pytest.mark.parametrize(
    ("fields", "branches"),
    [
        ({}, {"attention": 2, "ffn": 2}),
        ({"attn_mask_diagonal": True}, {"attention": 0, "ffn": 2}),
        ({"residual": "none"}, {"attention": 2, "ffn": 2}),
        ({"pos_embed": "rope2d", "num_heads": 4}, {"attention": 0, "ffn": 2}),
        ({"attention": "linformer"}, {"attention": 0, "ffn": 2}),
        ({"attn_drop": 0.1}, {"attention": 0, "ffn": 2}),
        ({"proj_drop": 0.1}, {"attention": 2, "ffn": 0}),
        ({"drop_path": 0.1}, {"attention": 2, "ffn": 2}),
        ({"embed_dim": 24}, {"attention": 0, "ffn": 0}),
    ],
    ids=str,
)
def test_in_fp32_kernels_compute_the_branches_that_they_support(fields, branches, here):
    model = build_vit(changed(**{**WIDE, **fields})).train()
    if choose_kernels(model, CPU, None) != "native":
        pytest.skip("native kernels for fp32: no compiler or another processor")
    calls = nodes(model(torch.randn(2, 3, 16, 16)))
    names = {"attention": "AttentionBranchBackward", "ffn": "FfnBranchBackward"}
    assert {branch: calls[name] for branch, name in names.items()} == branches


def test_recomputed_blocks_give_the_same_gradients(native_machine):
    model = build_vit(changed(**WIDE)).train()
    choose_kernels(model, CPU, BF16)
    images, found = torch.randn(4, 3, 16, 16), []
    for model.grad_checkpointing in (False, True):
        model.zero_grad()
        with torch.autocast("cpu", BF16):
            model(images).float().square().mean().backward()
        found.append([p.grad for p in model.parameters()])
    assert_close(found[0], found[1], rtol=0, atol=0)
