"""The Vision Transformer: sizes, ablations, training, recomputed blocks and compilation."""

import pytest
import torch
from torch.testing import assert_close

from tests.core.specs import build, changed, classify, pictures
from tests.core.trainings import training_on
from vitcli.core.inspect.cost import count_parameters
from vitcli.core.models.vit import build_vit
from vitcli.core.nn.norm import TokenBatchNorm
from vitcli.core.spec import model_spec
from vitcli.core.spec.slots import SLOTS

ROWS = [(slot, row) for slot, table in SLOTS.items() for row in table]
OTHERS = [
    {"reg_tokens": 3},
    {"layer_scale_init": 1e-4},
    {"drop_path": 0.2, "attn_drop": 0.1, "proj_drop": 0.1, "pos_drop": 0.1},
    {"attn_clamp": True},
    {"attn_mask_diagonal": True, "attn_scale": "learned"},
    {"attn_proj": False},
    {"qkv_bias": False, "proj_bias": False, "patch_bias": False},
    {"patch_pre_norm": True, "patch_post_norm": True},
    {"img_size": (8, 16)},
    {"depth": 0, "pool": "mean"},
    {"norm_position": "post", "final_norm": True},
    {"pos_embed_prefix": True, "reg_tokens": 1},
    {"pre_norm": True, "patch_bias": False},
]


@pytest.mark.parametrize("fields", [{slot: row} for slot, row in ROWS] + OTHERS, ids=str)
def test_every_row_of_every_slot_trains(fields):
    model = build_vit(changed(**fields))
    images = torch.randn(4, 3, *model.spec.img_size)
    batch = {"images": images, "targets": torch.tensor([0, 1, 2, 3])}
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    steps = list(training_on(classify(model), [batch] * 3, {}).run_epoch(0))
    assert all(step.scalars["loss"].isfinite() for step in steps)
    still = [name for name, p in model.named_parameters() if torch.equal(p, before[name])]
    # The head reads only CLS of the last block, which has no bias and which the filters pass by.
    assert {name.removeprefix("blocks.1.") for name in still} <= {
        "attn.inner.position.relative_table",
        "ffn.inner.filters.conv.weight",
        "ffn.inner.filters.conv.bias",
    }


@pytest.mark.parametrize("pos_embed", ["none", "rope2d", "learned"])
def test_residual_sums_are_fp32_under_autocast(pos_embed):
    model, seen = build_vit(changed(pos_embed=pos_embed)), []
    for block in model.blocks:
        block.register_forward_hook(lambda _, inputs, output: seen.extend((inputs[0], output)))
    with torch.autocast("cpu", torch.bfloat16):
        model(torch.randn(2, *model.image_shape))
    assert {each.dtype for each in seen} == {torch.float32}


REPORT = {"embed_dim": 400, "depth": 6, "num_heads": 8, "mlp_dim": 512}
COUNTS = [
    ({"head": "mlp"}, 6_507_482),
    ({"attn_proj": False}, 5_384_682),
]


@pytest.mark.parametrize(("fields", "count"), COUNTS, ids=str)
def test_the_number_of_parameters_is_exact(fields, count):
    """tests/test_experiments.py has those of the shipped experiments."""
    sizes = {"img_size": (32, 32), "in_chans": 3, "num_classes": 10}
    spec = model_spec(**(sizes | {"pos_embed": "sincos2d"} | REPORT | fields))
    with torch.device("meta"):
        model = build_vit(spec)
    assert count_parameters(model) == count


@pytest.mark.parametrize(
    ("fields", "formula"),
    [
        ({}, lambda x, branch: x + branch.inner(branch.norm(x))),
        ({"residual": "none"}, lambda x, branch: branch.inner(branch.norm(x))),
        ({"norm_position": "post"}, lambda x, branch: branch.norm(x + branch.inner(x))),
    ],
)
def test_a_block_without_ffn_is_the_formula_of_its_attention(fields, formula):
    """With an Identity as FFN, x + f(norm(x)) would still add norm(x)."""
    model = build(ffn="none", depth=1, **fields)
    assert "ffn" not in dict(model.blocks[0].named_children())
    tokens = torch.randn(2, 17, 24, dtype=torch.float64)
    assert_close(model.blocks[0](tokens), formula(tokens, model.blocks[0].attn))
    assert (model.norm(tokens) is tokens) == ("norm_position" in fields)


class Averaged(torch.nn.Module):
    """Divides by a running average, as own layers may."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.register_buffer("average", torch.ones(()))

    def forward(self, x):
        x = self.inner(x) / self.average
        self.average = self.average.lerp(x.detach().square().mean(), 0.1)
        return x


@pytest.mark.parametrize("place", ["pre", "post"])
def test_recomputing_blocks_updates_running_statistics_once(place):
    """This holds for two backward passes too, which recompute the forward pass twice."""
    found = []
    for recompute in (False, True):
        torch.manual_seed(1)
        model = build_vit(changed(norm="batch_norm", norm_position=place))
        model.blocks[0] = Averaged(model.blocks[0])
        model.double().train().grad_checkpointing = recompute
        before = {name: buffer.clone() for name, buffer in model.named_buffers()}
        images = pictures(4)
        model(images).square().sum().backward()
        loss = model(images).square().sum()
        loss.backward(retain_graph=True)
        loss.backward()
        found.append(([p.grad for p in model.parameters()], dict(model.named_buffers())))
    (gradients, buffers), (again, recomputed) = found
    assert all(torch.equal(a, b) for a, b in zip(gradients, again, strict=True))
    assert buffers.keys() == recomputed.keys()
    for name, buffer in buffers.items():
        assert torch.equal(buffer, recomputed[name]), name
        assert not torch.equal(buffer, before[name]), name
    assert {m.momentum for m in model.modules() if isinstance(m, TokenBatchNorm)} == {0.1}


SKIPPED = [
    {},
    {"norm_position": "post", "final_norm": True},
    {"pos_embed": "rope2d"},
    {"pos_embed": "relative"},
    {"norm": "none"},
    {"norm": "rms_norm"},
    {"norm": "batch_norm"},
    {"residual": "none"},
    {"ffn": "none"},
    {"ffn": "depthwise"},
    {"attn_mask_diagonal": True, "pos_embed": "relative", "reg_tokens": 1},
    {"depth": 1},
    {"depth": 0},
    {"reg_tokens": 2, "layer_scale_init": 0.5},
    {"attn_proj": False, "attn_scale": "learned", "attn_clamp": True},
]


@pytest.mark.parametrize("fields", SKIPPED, ids=str)
def test_computing_only_cls_in_the_last_block_changes_nothing(fields):
    """With CLS, the last block computes one token. Logits and gradients do not change."""
    model, images = build(**fields), pictures(3)
    found = []
    for logits in (model(images), model.forward_head(model.forward_features(images))):
        model.zero_grad()
        logits.square().sum().backward()
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
        found.append([logits, *grads])
    for one, other in zip(*found, strict=True):
        # The rounding error of a sum is relative to its terms. Without a norm, gradients reach
        # 2.5e5. If softmax saturates, the relative error of float64 (2e-16) grows to 1e-12. The
        # test allows 1e-10.
        scale = other.detach().abs().amax().item() if other.numel() else 0.0
        assert_close(one, other, rtol=0, atol=1e-10 * scale)
