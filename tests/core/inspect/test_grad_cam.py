"""Grad-CAM equals a result computed by hand and finite differences."""

import pytest
import torch
from torch.testing import assert_close

from tests.core.specs import build, pictures
from vitcli.core.inspect.grad_cam import feature_layer, grad_cam, last_feature_layer

SHAPES = [
    {},
    {"reg_tokens": 2},
    {"pool": "mean"},
    {"pool": "mean", "reg_tokens": 2},
    {"pool": "seq", "reg_tokens": 1},
    {"img_size": (8, 16)},
    {"residual": "none"},
    {"norm_position": "post"},
    {"norm": "batch_norm"},
    {"depth": 1},
    {"depth": 0, "pool": "mean", "reg_tokens": 1},
]


def by_differences(model, images, classes, layer: int) -> torch.Tensor:
    """Return the map with gradients measured by finite differences of every patch feature."""
    with torch.no_grad():
        stream = model.embed(images)
        for block in list(model.blocks)[:layer]:
            stream = block(stream)
        is_pre = model.spec.norm_position == "pre"
        after = list(model.blocks)[layer:]
        if not after:
            tokens = model.norm(stream)
        else:
            tokens = after[0].attn.norm(stream) if is_pre else stream

        def logit(moved: torch.Tensor) -> torch.Tensor:
            if after:
                branch = after[0].attn
                added = branch.after(branch.inner(moved))
                moved = added if model.spec.residual == "none" else stream + added
                moved = moved if is_pre else branch.norm(moved)
                for rest in (after[0].ffn, *after[1:]):
                    moved = rest(moved)
                moved = model.norm(moved)
            return model.forward_head(moved)[torch.arange(len(images)), classes]

        first = model.num_prefix_tokens
        maps = torch.zeros(tokens.shape[0], tokens.shape[1] - first, dtype=tokens.dtype)
        for channel in range(tokens.shape[2]):
            slopes = []
            for place in range(first, tokens.shape[1]):
                step = torch.zeros_like(tokens)
                step[:, place, channel] = 1e-5
                slopes.append((logit(tokens + step) - logit(tokens - step)) / 2e-5)
            weight = torch.stack(slopes).mean(0)
            maps = maps + weight[:, None] * tokens[:, first:, channel]
    return maps.clamp(min=0).unflatten(1, model.grid_size)


@pytest.mark.parametrize("fields", SHAPES, ids=str)
def test_the_map_equals_finite_differences_of_the_logit(fields):
    model = build(embed_dim=12, **fields)
    images, classes = pictures(2, model.spec.img_size), torch.tensor([1, 4])
    for layer in range(last_feature_layer(model) + 1):
        maps = grad_cam(model, images, classes, layer)
        assert maps.shape == (2, *model.grid_size)
        assert not maps.requires_grad
        assert_close(maps, by_differences(model, images, classes, layer), rtol=1e-5, atol=1e-7)
    usual = grad_cam(model, images, classes, max(0, model.spec.depth - 1))
    assert_close(usual, grad_cam(model, images, classes))
    assert all(parameter.grad is None for parameter in model.parameters())


def test_each_image_uses_its_own_class():
    model, images = build(pool="mean"), pictures(3)
    likeliest = model(images).argmax(1)
    assert_close(grad_cam(model, images), grad_cam(model, images, likeliest))
    for i in range(3):
        one = grad_cam(model, images[i : i + 1], likeliest[i : i + 1])
        assert_close(grad_cam(model, images)[i], one[0])
    assert not torch.allclose(grad_cam(model, images), grad_cam(model, images, (likeliest + 1) % 5))


def test_layers_are_counted_from_the_embedded_patches_or_backwards():
    pooled, cls = build(pool="mean"), build()
    assert [feature_layer(pooled, layer) for layer in (None, 0, 1, 2, -1, -2)] == [1, 0, 1, 2, 2, 1]
    assert [feature_layer(cls, layer) for layer in (None, 0, 1, -2)] == [1, 0, 1, 1]
    assert feature_layer(build(depth=1)) == 0
    assert feature_layer(build(depth=0, pool="mean")) == 0
    for model, wrong in ((cls, -1), (cls, 3), (pooled, 3), (pooled, -3)):
        with pytest.raises(ValueError, match="layer"):
            feature_layer(model, wrong)
    with pytest.raises(ValueError, match="the model has no layers, so no patch reaches CLS"):
        grad_cam(build(depth=0), pictures())
