"""Attention maps: one number for each patch, for all poolings, prefixes and methods."""

import pytest
import torch
from torch.testing import assert_close

from tests.core.specs import build, pictures, rows
from vitcli.core.inspect.maps import (
    METHODS,
    MapRequest,
    check_layers,
    default_method,
    head_maps,
    raw_weights,
)
from vitcli.core.inspect.rollout import grad_rollout, rollout

SHAPES = [
    {},
    {"reg_tokens": 2},
    {"pool": "mean"},
    {"pool": "seq", "reg_tokens": 1},
    {"img_size": (8, 16), "patch_size": 4},
    {"residual": "none"},
]


def make_request(model, **changes) -> MapRequest:
    fields = {"model": model, "images": pictures(2, model.spec.img_size), "layers": (1,)} | changes
    return MapRequest(**fields)


@pytest.mark.parametrize("pool", rows("pool"))
def test_read_out_weights_equal_those_of_the_pool(pool):
    model = build(pool=pool, reg_tokens=1)
    tokens = torch.randn(2, model.num_prefix_tokens + 16, 24, dtype=torch.float64)
    shares = model.pool.weights(tokens)
    assert_close(shares.sum(1), torch.ones(2, dtype=torch.float64))
    assert_close((shares[:, None] @ tokens)[:, 0], model.pool(tokens))


@pytest.mark.parametrize("fields", SHAPES, ids=str)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_gives_one_number_for_each_patch(method, fields):
    model = build(**fields)
    request = make_request(
        model, layers=(0,), query=None if model.cls_token is not None else (1, 2)
    )
    maps = METHODS[method](request)
    assert maps.shape == (2, *model.grid_size)
    assert (maps >= 0).all()
    assert not maps.requires_grad
    assert maps.std() > 0
    assert head_maps(request).shape == (2, 1, 3, *model.grid_size)


def test_maps_are_the_documented_rows_of_the_weights():
    model = build(reg_tokens=2)
    request = make_request(model, layers=(0, 1), heads=(2,))
    weights = model.attention_weights(request.images)
    assert_close(METHODS["cls"](request)[0, 1, 3], (weights[0] + weights[1])[0, 2, 0, 3 + 7] / 2)
    assert_close(head_maps(request)[1, 1, 0, 0, 0], weights[1][1, 2, 0, 3])
    placed = make_request(model, layers=(1,), query=(2, 1), images=request.images)
    assert_close(METHODS["cls"](placed)[0].flatten(), weights[1][0, :, 3 + 9, 3:].mean(0))
    through = rollout(weights.values())
    assert_close(METHODS["rollout"](request)[0].flatten(), through[0, 0, 3:])
    first = make_request(model, layers=(0,), images=request.images)
    assert_close(METHODS["rollout"](first)[0].flatten(), rollout([weights[0]])[0, 0, 3:])


@pytest.mark.parametrize("fields", SHAPES, ids=str)
def test_raw_weights_are_matrices_in_the_requested_order(fields):
    model = build(**fields)
    request = make_request(model, layers=(1, 0), heads=(2, 0))
    weights, found = model.attention_weights(request.images), raw_weights(request)
    count = model.num_prefix_tokens + model.grid_size[0] * model.grid_size[1]
    assert found.shape == (2, 2, 2, count, count)
    assert_close(found.sum(-1), torch.ones_like(found[..., 0]))
    assert not torch.allclose(found.sum(-2), torch.ones_like(found[..., 0])), "columns do not"
    for place, layer in enumerate((1, 0)):
        assert_close(found[:, place], weights[layer][:, [2, 0]])
        assert_close(head_maps(request)[:, place], head_maps(make_request(
            model, images=request.images, layers=(layer,), heads=(2, 0)))[:, 0])  # fmt: skip
    assert raw_weights(make_request(model)).shape == (2, 1, 3, count, count)


def test_gradient_rollout_depends_on_the_class_and_excludes_the_identity():
    cls, pooled = build(), build(pool="mean")
    for model in (cls, pooled):
        request = make_request(model, classes=torch.tensor([1, 4]))
        relevance, _ = grad_rollout(model, request.images, request.classes)
        moved = relevance - torch.eye(relevance.shape[-1])
        first = model.num_prefix_tokens
        row = moved[:, 0, first:] if model is cls else moved.mean(1)
        assert_close(METHODS["grad-rollout"](request).flatten(1), row)
    other = make_request(cls, images=request.images, classes=torch.tensor([2, 0]))
    same = make_request(cls, images=request.images, classes=torch.tensor([1, 4]))
    found = METHODS["grad-rollout"]
    assert not torch.allclose(found(other), found(same))


def test_the_method_cls_without_a_cls_token_is_refused():
    model = build(pool="mean")
    with pytest.raises(ValueError, match=r"no CLS token .* use the method grad-rollout"):
        METHODS["cls"](make_request(model))


@pytest.mark.parametrize(("by_class", "method"), [(True, "grad-rollout"), (False, "rollout")])
def test_the_default_map_without_cls_needs_a_class_or_is_a_rollout(by_class, method):
    assert default_method(build(pool="mean"), by_class=by_class) == method
    assert default_method(build(), by_class=by_class) == "cls"


def test_layers_are_counted_from_1_or_backwards():
    model = build()
    assert check_layers(model, [1, 2, -1, -2]) == (0, 1, 1, 0)
    for wrong in (0, 3, -3):
        with pytest.raises(ValueError, match=f"layer {wrong} is out of range: the model has"):
            check_layers(model, [wrong])
