"""Compiled kernels compute what torch computes: results, gradients, whole models, resumed runs."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from tests.core.specs import REQUIRED, changed
from tests.stopping import stop_after
from vitcli.core.models.build import build_model
from vitcli.core.models.vit import build_vit
from vitcli.core.native import functions
from vitcli.core.native.modules import (
    NativeGelu,
    NativeLayerNorm,
    NativeLinear,
    NativePreNorm,
    NativeSelfAttention,
    use_kernels,
)
from vitcli.core.nn.softmax import attention
from vitcli.core.spec import TrainSpec
from vitcli.runner.errors import ResourceError, StoppedError
from vitcli.runner.experiment.config import load_experiment
from vitcli.runner.machine import kernels
from vitcli.runner.machine.kernels import choose_kernels, has_amx, load_kernels
from vitcli.runner.run.checkpoint import latest_checkpoint
from vitcli.runner.run.folder import RunDir
from vitcli.runner.train.start import Request, start

CPU, BF16 = torch.device("cpu"), torch.bfloat16
needs_amx = pytest.mark.skipif(not has_amx(), reason="native kernels: this CPU has no AMX")
WIDE = {"embed_dim": 48, "num_heads": 3, "img_size": (16, 16), "patch_size": 4}
SIZES = [(65, 4, 16), (65, 8, 50), (16, 1, 64), (64, 2, 32), (1, 1, 2), (33, 3, 18), (257, 2, 8)]


@pytest.fixture(autouse=True)
def _cache(here) -> None:
    """Compiled once for all tests."""


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def error(found: torch.Tensor, exact: torch.Tensor) -> float:
    """Relative, of all elements together."""
    return ((found.double() - exact).norm() / exact.norm().clamp(min=1e-30)).item()


def gradients(function, inputs, grad) -> list[torch.Tensor]:
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    out = function(*leaves)
    out.backward(grad.to(out.dtype))
    return [out.detach(), *[leaf.grad for leaf in leaves]]


def explicit(qkv: torch.Tensor, heads: int) -> torch.Tensor:
    q, k, v = qkv.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
    return attention(q, k, v, fused=False).transpose(1, 2).flatten(2)


@needs_amx
@pytest.mark.parametrize(("tokens", "heads", "dim"), SIZES)
def test_attention_is_nearer_to_the_exact_one_than_torchs(tokens, heads, dim, two_threads):
    qkv = (2 * torch.randn(5, tokens, 3 * heads * dim)).to(BF16)
    grad = torch.randn(5, tokens, heads * dim).to(BF16)
    scale = dim**-0.5

    def native(x):
        return functions.Attention.apply(x, heads, scale, load_kernels())

    exact = gradients(lambda x: explicit(x, heads), [qkv.double()], grad)
    plain = gradients(lambda x: explicit(x, heads), [qkv], grad)
    ours = gradients(native, [qkv], grad)
    for mine, torchs, true in zip(ours, plain, exact, strict=True):
        assert error(mine, true) <= 1.05 * error(torchs, true) + 1e-6


@needs_amx
def test_attention_sees_every_token_and_no_other_image(two_threads):
    """The negative control: one changed token changes its image's result and no other's."""
    qkv = torch.randn(3, 33, 3 * 16).to(BF16)
    other = qkv.clone()
    other[1, 32] += 1  # the last token, alone in its tile
    one, two = (functions.Attention.apply(x, 1, 0.25, load_kernels()) for x in (qkv, other))
    differs = (one != two).any(-1)
    assert differs[1].all()
    assert not differs[0].any()
    assert not differs[2].any()


@needs_amx
@pytest.mark.parametrize("rows", [1, 31, 300])
@pytest.mark.parametrize(("inputs", "outputs"), [(16, 16), (48, 80), (64, 192), (400, 48)])
def test_a_linear_layers_gradients_are_sums_in_float(rows, inputs, outputs, two_threads):
    x, grad = torch.randn(rows, inputs).to(BF16), torch.randn(rows, outputs).to(BF16)
    weight, bias = torch.randn(outputs, inputs), torch.randn(outputs)

    def native(x, w, b):
        return functions.Linear.apply(x, w, b, load_kernels())

    out, grad_x, grad_w, grad_b = gradients(native, [x, weight, bias], grad)
    assert_close(out, F.linear(x, weight.to(BF16), bias.to(BF16)))
    assert_close(grad_x, grad @ weight.to(BF16))
    assert_close(grad_w, grad.float().T @ x.float(), rtol=1e-4, atol=1e-4)
    assert_close(grad_b, grad.float().sum(0), rtol=1e-4, atol=1e-4)
    torch.set_num_threads(1)
    alone = gradients(native, [x, weight, bias], grad)[2:]
    assert_close([grad_w, grad_b], alone, rtol=0, atol=0)  # whatever the number of threads


@needs_amx
@pytest.mark.parametrize("width", [8, 48, 64, 400])
@pytest.mark.parametrize("has_branch", [True, False])
def test_sum_and_norm_in_one_pass(width, has_branch, two_threads):
    x, branch = torch.randn(37, width), torch.randn(37, width).to(BF16)
    weight, bias = torch.randn(width), torch.randn(width)
    grads = torch.randn(37, width), torch.randn(37, width).to(BF16)

    def native(x, branch, weight, bias):
        pending = branch if has_branch else None
        total, y = functions.AddNorm.apply(x, pending, weight, bias, 1e-6, load_kernels())
        return (total * grads[0]).sum() + (y.float() * grads[1]).sum() + 0 * branch.sum()

    def exact(x, branch, weight, bias):
        total = x + branch if has_branch else x + 0 * branch
        y = F.layer_norm(total, (width,), weight, bias, 1e-6)
        return (total * grads[0]).sum() + (y * grads[1]).sum()

    inputs = [x, branch, weight, bias]
    ours = gradients(native, inputs, torch.ones(()))
    true = gradients(exact, [value.double() for value in inputs], torch.ones(()))
    for mine, other in zip(ours[1:], true[1:], strict=True):
        assert_close(mine.double(), other, rtol=1e-2, atol=1e-2)


@needs_amx
def test_gelu(two_threads):
    x = torch.cat([torch.linspace(-12, 12, 1001), torch.tensor([0.0, -0.0, 1e-30])]).to(BF16)
    grad = torch.ones_like(x)
    exact = gradients(F.gelu, [x.double()], grad)
    ours = gradients(lambda x: functions.Gelu.apply(x, load_kernels()), [x], grad)
    for mine, true in zip(ours, exact, strict=True):
        assert_close(mine, true.to(BF16), rtol=0.01, atol=1e-6)


@needs_amx
def test_infinite_and_missing_numbers_are_not_hidden():
    """A diverging run must be seen to diverge."""
    for bad in (float("nan"), float("inf")):
        qkv = torch.randn(2, 20, 48).to(BF16)
        qkv[0, 3, 5] = bad
        assert not functions.Attention.apply(qkv, 1, 0.25, load_kernels())[0].isfinite().all()
        x = torch.tensor([[1.0, bad, 2.0, 3.0]])
        one = torch.ones(4)
        assert (
            not functions.AddNorm.apply(x, None, one, one, 1e-6, load_kernels())[1].isfinite().all()
        )
    assert functions.Gelu.apply(torch.tensor([float("nan")]).to(BF16), load_kernels()).isnan().all()


VARIANTS = [
    {},
    {"pool": "mean", "pos_embed": "rope2d"},
    {"pos_embed": "relative"},
    {"pos_embed": "none"},
    {"norm": "none"},
    {"norm": "rms_norm"},
    {"norm_position": "post", "final_norm": True},
    {"final_norm": False},
    {"residual": "none"},
    {"ffn": "none"},
    {"ffn": "relu"},
    {"ffn": "swiglu"},
    {"num_heads": 1},
    {"attn_scale": "learned"},
    {"attn_clamp": True},
    {"layer_scale_init": 0.1},
    {"patch_embed": "conv_tokenizer"},
    {"patch_pre_norm": True, "patch_post_norm": True},
    {"qkv_bias": False, "proj_bias": False},
    {"embed_dim": 24},
    {"embed_dim": 45, "num_heads": 3},
    {"reg_tokens": 2, "pool": "seq"},
    {"depth": 0},
    *({"family": family, **fields} for family, fields in REQUIRED.items() if len(fields) > 0),
]


@needs_amx
@pytest.mark.parametrize("fields", VARIANTS, ids=str)
def test_a_model_learns_the_same_with_either_kernels(fields):
    plain = build_model(changed(**{**WIDE, **fields})).train()
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    exact, native = copy.deepcopy(plain).double(), copy.deepcopy(plain)
    choose_kernels(plain, CPU, BF16, "torch")
    assert choose_kernels(native, CPU, BF16) == "native"
    images, labels = torch.randn(64, 3, 16, 16), torch.randint(5, (64,))

    def learn(model, dtype):
        with torch.autocast("cpu", BF16, enabled=dtype is BF16):
            logits = model(images.to(torch.float64 if dtype is None else torch.float32))
            loss = F.cross_entropy(logits.to(torch.float64), labels)
        loss.backward()
        return torch.cat([p.grad.flatten().double() for p in model.parameters()])

    true, torchs, ours = learn(exact, None), learn(plain, BF16), learn(native, BF16)
    assert 0 < error(torchs, true) < 0.1
    assert error(ours, true) < 1.3 * error(torchs, true)


@needs_amx
def test_recomputed_blocks_give_the_same_gradients():
    model = build_vit(changed(**WIDE)).train()
    choose_kernels(model, CPU, BF16)
    images, found = torch.randn(4, 3, 16, 16), []
    for model.grad_checkpointing in (False, True):
        model.zero_grad()
        with torch.autocast("cpu", BF16):
            model(images).float().square().mean().backward()
        found.append([p.grad for p in model.parameters()])
    assert_close(found[0], found[1], rtol=0, atol=0)


@needs_amx
def test_what_is_exchanged():
    model = build_vit(changed(**WIDE))
    assert choose_kernels(model, CPU, BF16) == "native"
    block = model.blocks[0]
    assert type(block.attn) is type(block.ffn) is NativePreNorm
    assert type(block.attn.inner) is NativeSelfAttention
    assert type(block.attn.inner.qkv) is type(block.ffn.inner.fc1) is NativeLinear
    assert type(block.ffn.inner.act) is NativeGelu
    assert type(model.norm) is NativeLayerNorm
    assert type(model.head) is nn.Linear  # 5 classes are no multiple of 16


@needs_amx
def test_in_fp32_a_model_stays_what_it_was():
    plain = build_vit(changed(**WIDE)).eval()
    native = copy.deepcopy(plain)
    use_kernels(native, load_kernels())
    images = torch.randn(4, 3, 16, 16)
    plain_logits, plain_maps = plain.forward_with_weights(images)
    logits, maps = copy.deepcopy(native).forward_with_weights(images)
    assert_close(native(images), plain(images), rtol=0, atol=0)
    assert_close(logits, plain_logits, rtol=0, atol=0)
    assert_close(maps, plain_maps, rtol=0, atol=0)
    assert native.state_dict().keys() == plain.state_dict().keys()


@needs_amx
def test_weights_can_be_looked_at_under_autocast_too():
    model = build_vit(changed(**WIDE)).eval()
    images = torch.randn(4, 3, 16, 16)
    exact, exact_maps = model.forward_with_weights(images)
    choose_kernels(model, CPU, BF16)
    with torch.autocast("cpu", BF16):
        logits, maps = model.forward_with_weights(images, [1])
        assert_close(model(images).float(), exact, rtol=0.05, atol=0.05)
    assert_close(logits.float(), exact, rtol=0.05, atol=0.05)
    assert_close(maps[1].float(), exact_maps[1], rtol=0.05, atol=0.01)


def test_elsewhere_torch_computes():
    model = build_vit(changed(**WIDE))
    assert choose_kernels(model, CPU, None) == "torch"
    assert model.blocks[0].attn.inner.fused
    with pytest.raises(ResourceError, match=r"train\.kernels=native.*need bf16"):
        choose_kernels(model, CPU, None, "native")


def test_without_a_compiler_torch_computes_and_it_is_said(monkeypatch):
    monkeypatch.setattr(kernels, "has_amx", lambda: True)
    monkeypatch.setattr(kernels, "load_kernels", load_kernels.__wrapped__)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CC", "")
    said: list[str] = []
    model = build_vit(changed(**WIDE))
    assert choose_kernels(model, CPU, BF16, on_message=said.append) == "torch"
    assert "no C compiler" in said[0]
    assert not model.blocks[0].attn.inner.fused
    with pytest.raises(ResourceError, match="no C compiler"):
        choose_kernels(model, CPU, BF16, "native")


@needs_amx
def test_a_compiler_that_fails_leaves_the_model_alone(monkeypatch, tmp_path):
    broken = tmp_path / "cc"
    broken.write_text(
        "#!/bin/sh\n[ $1 = --version ] || { echo 'x.c: error: broken' >&2; exit 1; }\n"
    )
    broken.chmod(0o755)
    monkeypatch.setenv("CC", str(broken))
    monkeypatch.setattr(kernels, "load_kernels", load_kernels.__wrapped__)
    said: list[str] = []
    model = build_vit(changed(**WIDE))
    assert choose_kernels(model, CPU, BF16, on_message=said.append) == "torch"
    assert "x.c: error: broken" in said[0]
    assert not any(isinstance(part, NativeLinear) for part in model.modules())


def test_compile_and_native_kernels_exclude_each_other():
    with pytest.raises(ValueError, match=r"torch\.compile cannot see into"):
        TrainSpec(compile=True, kernels="native")


@needs_amx
@pytest.mark.parametrize("began_native", [True, False])
def test_a_run_goes_on_with_the_kernels_it_began_with(tiny, here, monkeypatch, began_native):
    experiment, folder = load_experiment(str(tiny)), here / "run"

    def on_a_machine(has_kernels: bool, patch, **options):
        patch.setattr(kernels, "has_amx", lambda: has_kernels)
        return start(experiment, Request(output=folder, **options))

    with monkeypatch.context() as patch:
        stop_after(patch, 6)
        with pytest.raises(StoppedError):
            on_a_machine(began_native, patch)
    stored = latest_checkpoint(RunDir(folder).checkpoints, print)
    assert stored.state["kernels"] == ("native" if began_native else "torch")
    if began_native:
        with monkeypatch.context() as patch, pytest.raises(ResourceError, match="native"):
            on_a_machine(False, patch, resume=True)
    with monkeypatch.context() as patch:
        on_a_machine(True, patch, resume=True)
    stored = latest_checkpoint(RunDir(folder).checkpoints, print)
    assert stored.state["kernels"] == ("native" if began_native else "torch")
