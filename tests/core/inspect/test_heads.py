"""Models without a head, with a uniform head, and the logits after each layer."""

import pytest
import torch
from torch.testing import assert_close

from tests.core.specs import build, pictures
from vitcli.core.inspect.heads import (
    attention_of,
    can_be_uniform,
    logits_by_layer,
    logits_without_heads,
)

FIELDS = {"depth": 2, "num_heads": 3, "embed_dim": 24}


def changed_logits(model, images, layer: int, head: int, change: str) -> torch.Tensor:
    """Return the logits with one head changed, from the plain definition of attention."""

    def rule(module, x):
        q, k, v = module.heads(x)
        weights = module.attend.weights(q, k, module.position.bias())
        if change == "uniform":
            weights[:, head] = 1 / weights.shape[-1]
        out = weights @ v
        if change == "removed":
            out[:, head] = 0
        return module.proj(out.transpose(1, 2).flatten(2))

    attention = attention_of(model.blocks[layer])
    tokens = model.embed(images)
    for block in model.blocks:
        for branch in (block.attn, block.ffn):
            is_changed = branch is block.attn and attention_of(block) is attention
            inside = (lambda x: rule(attention, x)) if is_changed else branch.inner
            tokens = tokens + inside(branch.norm(tokens))
    return model.forward_head(model.last_norm(tokens))


@pytest.mark.parametrize(
    "fields", [{}, {"pos_embed": "rope2d"}, {"qkv_bias": False}, {"attn_proj": False}], ids=str
)
@torch.no_grad()
def test_every_head_is_changed_as_the_definition_says(fields):
    model, images = build(**FIELDS | fields).eval(), pictures(2)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    whole, seen = model(images), []
    for layer, head, change, logits in logits_without_heads(model, images):
        seen.append((layer, head, change))
        assert_close(logits, changed_logits(model, images, layer, head, change))
        assert not torch.allclose(logits, whole, atol=1e-5)
    expected = [(i, j, c) for i in range(2) for j in range(3) for c in ("removed", "uniform")]
    assert seen == expected
    assert all(tensor.equal(before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize(
    "fields",
    [
        {"pos_embed": "relative"},
        {"attn_mask_diagonal": True},
        *({"attention": name} for name in ("local", "strided", "performer", "linear")),
    ],
    ids=str,
)
def test_attention_that_zero_queries_do_not_make_uniform_is_not_called_so(fields):
    model = build(**FIELDS, **fields).eval()
    assert not can_be_uniform(model)
    changes = {change for *_, change, _ in logits_without_heads(model, pictures(1))}
    assert changes == {"removed"}


@pytest.mark.parametrize("fields", [{}, {"pool": "mean"}, {"norm_position": "post"}], ids=str)
@torch.no_grad()
def test_the_last_layer_says_what_the_model_says(fields):
    model, images = build(**FIELDS | fields).eval(), pictures(2)
    logits = logits_by_layer(model, images)
    assert logits.shape == (2, 3, model.spec.num_classes)
    assert_close(logits[:, -1], model(images))
    first = model.blocks[0](model.embed(images))
    assert_close(logits[:, 1], model.forward_head(model.last_norm(first)))
    assert not torch.allclose(logits[:, 0], logits[:, 1])
