"""Attention maps, rollout and Grad-CAM equal results by hand and finite differences."""

import pytest
import torch
from torch.testing import assert_close

from tests.core.specs import build, pictures
from vitcli.core.inspect.grad_cam import feature_layer, grad_cam
from vitcli.core.inspect.heads import (
    attention_of,
    can_be_uniform,
    logits_by_layer,
    logits_without_heads,
)
from vitcli.core.inspect.maps import (
    METHODS,
    MapRequest,
    check_layers,
    grad_rollout,
    head_maps,
    raw_weights,
    rollout,
)
from vitcli.core.nn.attention import AttentionRule

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


@pytest.mark.parametrize("fields", SHAPES, ids=str)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_gives_one_number_for_each_patch(method, fields):
    model = build(**fields)
    query = None if model.cls_token is not None else (1, 2)
    request = make_request(model, layers=(0,), query=query)
    maps = METHODS[method](request)
    assert maps.shape == (2, *model.grid_size)
    assert (maps >= 0).all()
    assert maps.std() > 0
    assert not maps.requires_grad
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


def test_raw_weights_are_matrices_in_the_requested_order():
    model = build(pool="seq", reg_tokens=1)
    request = make_request(model, layers=(1, 0), heads=(2, 0))
    weights, found = model.attention_weights(request.images), raw_weights(request)
    assert found.shape == (2, 2, 2, 17, 17)
    for place, layer in enumerate((1, 0)):
        assert_close(found[:, place], weights[layer][:, [2, 0]])
        alone = make_request(model, images=request.images, layers=(layer,), heads=(2, 0))
        assert_close(head_maps(request)[:, place], head_maps(alone)[:, 0])
    assert raw_weights(make_request(model)).shape == (2, 1, 3, 17, 17)


def test_gradient_rollout_takes_the_class_and_excludes_the_identity():
    for model in (build(), build(pool="mean")):
        request = make_request(model, classes=torch.tensor([1, 4]))
        relevance, _ = grad_rollout(model, request.images, request.classes)
        moved = relevance - torch.eye(relevance.shape[-1])
        first = model.num_prefix_tokens
        row = moved[:, 0, first:] if model.cls_token is not None else moved.mean(1)
        assert_close(METHODS["grad-rollout"](request).flatten(1), row)


def test_layers_are_counted_from_1_or_backwards():
    model = build()
    assert check_layers(model, [1, 2, -1, -2]) == (0, 1, 1, 0)
    for wrong in (0, 3, -3):
        with pytest.raises(ValueError, match=f"layer {wrong} is out of range: the model has"):
            check_layers(model, [wrong])


A = torch.tensor([[[0.5, 0.5], [0.0, 1.0]], [[1.0, 0.0], [0.5, 0.5]]])[None]  # (1, 2, 2, 2)
B = torch.tensor([[[0.0, 1.0], [1.0, 0.0]], [[0.0, 1.0], [1.0, 0.0]]])[None]


def test_rollout_equals_the_result_by_hand():
    # Means over heads: A [[.75, .25], [.25, .75]], B [[0, 1], [1, 0]].
    # With half the identity: [[.875, .125], [.125, .875]] and [[.5, .5], [.5, .5]].
    assert_close(rollout([A]), torch.tensor([[[0.875, 0.125], [0.125, 0.875]]]))
    assert_close(rollout([A, B]), torch.full((1, 2, 2), 0.5))
    # Without a residual: B @ A swaps the rows of A; A @ B would swap its columns.
    assert_close(rollout([A, B], residual=False), torch.tensor([[[0.25, 0.75], [0.75, 0.25]]]))
    lopsided = torch.tensor([[[[1.0, 0.0], [0.5, 0.5]]]])
    assert_close(rollout([lopsided, B], residual=False), torch.tensor([[[0.5, 0.5], [1.0, 0.0]]]))


class GivenWeights(AttentionRule):
    def __init__(self, given: torch.Tensor) -> None:
        super().__init__()
        self.given = given

    def forward(self, query, key, value):
        return self.given @ value


def by_hand(model, image, wanted: int) -> torch.Tensor:
    attns = [block.attn.inner for block in model.blocks]
    layers = [model.attention_weights(image)[i] for i in range(len(attns))]
    relevance = torch.eye(layers[0].shape[-1], dtype=torch.float64)[None]
    for attn, weights in zip(attns, layers, strict=True):
        rule, gradient = attn.attend, torch.zeros_like(weights)
        for index in torch.cartesian_prod(*map(torch.arange, weights.shape[1:])).tolist():
            outs = []
            for sign in (1, -1):
                moved = weights.clone()
                moved[(0, *index)] += sign * 1e-5
                attn.attend = GivenWeights(moved)
                outs.append(model(image)[0, wanted].item())
            attn.attend = rule
            gradient[(0, *index)] = (outs[0] - outs[1]) / 2e-5
        relevance = relevance + (weights * gradient).clamp(min=0).mean(1) @ relevance
    return relevance


@pytest.mark.parametrize("place", ["pre", "post"])
def test_the_relevance_equals_finite_differences_of_the_logit(place):
    model = build(img_size=(8, 8), num_heads=2, norm_position=place).requires_grad_(False)
    image = pictures(1, (8, 8))
    relevance, logits = grad_rollout(model, image, torch.tensor([3]))
    with torch.no_grad():
        assert_close(relevance, by_hand(model, image, 3), rtol=1e-6, atol=1e-8)
        assert_close(logits, model(image))
    assert not relevance.requires_grad


CAM_SHAPES = [
    {},
    {"pool": "seq", "reg_tokens": 1},
    {"img_size": (8, 12)},
    {"residual": "none"},
    {"norm_position": "post"},
    {"norm": "batch_norm"},
    {"depth": 1},
    {"depth": 0, "pool": "mean", "reg_tokens": 1},
]


def by_differences(model, images, classes, layer: int) -> torch.Tensor:
    """Return the map with gradients measured by finite differences of every patch feature."""
    features: list[torch.Tensor] = []

    def logit(step) -> torch.Tensor:
        def move(_, inputs) -> torch.Tensor:
            features.append(inputs[0])
            return inputs[0] + step

        after = [block.attn.inner for block in model.blocks[layer:]] or [model.pool]
        with after[0].register_forward_pre_hook(move):
            logits = model.forward_head(model.forward_features(images))
        return logits[torch.arange(len(images)), classes]

    logit(0)
    tokens, first = features[0], model.num_prefix_tokens
    maps = torch.zeros(tokens.shape[0], tokens.shape[1] - first, dtype=tokens.dtype)
    for channel in range(tokens.shape[2]):
        slopes = []
        for place in range(first, tokens.shape[1]):
            step = torch.zeros_like(tokens)
            step[:, place, channel] = 1e-5
            slopes.append((logit(step) - logit(-step)) / 2e-5)
        weight = torch.stack(slopes).mean(0)
        maps = maps + weight[:, None] * tokens[:, first:, channel]
    return maps.clamp(min=0).unflatten(1, model.grid_size)


@pytest.mark.parametrize("fields", CAM_SHAPES, ids=str)
def test_the_map_equals_finite_differences_of_the_logit(fields):
    model = build(embed_dim=4, num_heads=2, **{"img_size": (8, 8)} | fields)
    images, classes = pictures(2, model.spec.img_size), torch.tensor([1, 4])
    for layer in range(model.spec.depth + (model.cls_token is None)):
        maps = grad_cam(model, images, classes, layer)
        assert maps.shape == (2, *model.grid_size)
        assert not maps.requires_grad
        with torch.no_grad():
            expected = by_differences(model, images, classes, layer)
        assert_close(maps, expected, rtol=1e-5, atol=1e-7)
    usual = grad_cam(model, images, classes, max(0, model.spec.depth - 1))
    assert_close(usual, grad_cam(model, images, classes))
    assert_close(grad_cam(model, images), grad_cam(model, images, model(images).argmax(1)))
    assert all(parameter.grad is None for parameter in model.parameters())


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


def changed_logits(model, images, layer: int, head: int, change: str) -> torch.Tensor:
    weights = model.attention_weights(images)[layer]
    weights[:, head] = 1 / weights.shape[-1] if change == "uniform" else 0
    attention = attention_of(model.blocks[layer])
    rule, attention.attend = attention.attend, GivenWeights(weights)
    logits = model.forward_head(model.forward_features(images))
    attention.attend = rule
    return logits


@pytest.mark.parametrize(
    "fields", [{}, {"pos_embed": "rope2d"}, {"qkv_bias": False}, {"attn_proj": False}], ids=str
)
@torch.no_grad()
def test_every_head_is_changed_as_the_definition_says(fields):
    model, images = build(**fields), pictures(2)
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
    model = build(**fields)
    assert not can_be_uniform(model)
    changes = {change for *_, change, _ in logits_without_heads(model, pictures(1))}
    assert changes == {"removed"}


@pytest.mark.parametrize("fields", [{}, {"pool": "mean"}, {"norm_position": "post"}], ids=str)
@torch.no_grad()
def test_the_last_layer_says_what_the_model_says(fields):
    model, images = build(**fields), pictures(2)
    logits = logits_by_layer(model, images)
    assert logits.shape == (2, 3, model.spec.num_classes)
    assert_close(logits[:, -1], model(images))
    first = model.blocks[0](model.embed(images))
    assert_close(logits[:, 1], model.forward_head(model.last_norm(first)))
    assert not torch.allclose(logits[:, 0], logits[:, 1])
