"""Models of timm: their logits are timm's, their maps are their attention, and seeds decide all."""

import re
from pathlib import Path

import pytest
import safetensors.torch
import timm
import torch
from torch.testing import assert_close

from tests.core.specs import noisy
from tests.core.trainings import of_parameters
from vitcli.core.inspect.maps import METHODS, MapRequest, default_method
from vitcli.core.models.image_model import build_model
from vitcli.core.spec import OptimSpec
from vitcli.core.train.optim import build_optimizers, freeze
from vitcli.plugins.timm.model import TimmModel, create_net, load_timm
from vitcli.plugins.timm.spec import TimmSpec
from vitcli.runner.text import ignore_message

PLAIN = ("test_vit", "test_vit2", "test_vit3", "test_vit4")
OTHERS = (
    *("test_convnext", "test_efficientnet", "test_resnet", "test_coatnet", "test_maxvit"),
    *("test_byobnet", "test_mambaout", "test_nfnet", "test_vit_relpos"),
)
PAGE = Path(__file__).parents[3] / "docs/how-to/weights.md"
ROW = re.compile(r"^\| `(\w+)` \| (yes|no) \| (yes|no) \|$", re.MULTILINE)
LARGE = {name: (maps == "yes", cam == "yes") for name, maps, cam in ROW.findall(PAGE.read_text())}
"""Name of timm -> whether the page says that its attention has maps, and that it has Grad-CAM."""
ALWAYS = ("test_vit", "test_vit3", "test_convnext")
CHECKED = [
    *ALWAYS,
    *(pytest.param(n, marks=pytest.mark.ci) for n in (*PLAIN, *OTHERS) if n not in ALWAYS),
    *(pytest.param(n, marks=pytest.mark.slow) for n in LARGE),
]


def spec(name: str, side: int = 64, **fields) -> TimmSpec:
    side = 224 if name in LARGE else side
    return TimmSpec(name=name, img_size=(side, side), in_chans=3, num_classes=5, **fields)


def build(name: str, seed: int = 0) -> TimmModel:
    """Return a model with random weights, also where timm starts with zeros."""
    model = build_model(spec(name), seed)
    assert isinstance(model, TimmModel)
    return noisy(model, 0.02).eval()


@pytest.mark.parametrize("name", CHECKED)
def test_logits_are_timms_and_follow_from_the_features(name):
    model = build(name)
    theirs = timm.create_model(**model.net.arguments).eval()
    theirs.load_state_dict({k.removeprefix("net."): v for k, v in model.state_dict().items()})
    images = torch.randn(2, *model.image_shape)
    with torch.no_grad():
        logits, features = model(images), model.features(images)
        assert logits.equal(theirs(images))
        assert features.shape == (2, model.num_features)
        if not isinstance(model.head, torch.nn.ModuleList):  # a mean of two heads
            assert_close(model.head(features), logits)


@pytest.mark.parametrize("name", CHECKED)
def test_a_seed_gives_the_weights_and_global_randomness_stays(name):
    before = torch.get_rng_state()
    one, same, other = (build_model(spec(name), seed).state_dict() for seed in (1, 1, 2))
    assert before.equal(torch.get_rng_state())
    assert all(one[key].equal(same[key]) for key in one)
    assert not all(one[key].equal(other[key]) for key in one)
    with torch.device("meta"):
        abstract = build_model(spec(name), 1).state_dict()
    assert all(abstract.pop(key).shape == value.shape for key, value in one.items())
    assert not abstract


@pytest.mark.parametrize("channels", [1, 5])
def test_weights_of_as_many_channels_are_read_as_they_are(tmp_path, channels):
    """timm before 1.0.31 draws the first layer of 5 channels anew."""
    shape = {"name": "test_vit", "img_size": (64, 64), "in_chans": channels, "num_classes": 5}
    one, other = (build_model(TimmSpec(**shape), seed).state_dict() for seed in (0, 1))
    model = build_model(TimmSpec(**shape), seed=1)
    state = {name.removeprefix("net."): tensor for name, tensor in one.items()}
    safetensors.torch.save_file(state, tmp_path / "one.safetensors")
    load_timm(model, tmp_path / "one.safetensors", ignore_message, ())
    found = model.state_dict()
    assert all(found[name].equal(one[name]) for name in one)
    assert not all(other[name].equal(one[name]) for name in one)


@pytest.mark.parametrize("name", CHECKED)
def test_the_head_is_the_last_layer_and_freezing_leaves_it(name):
    model = build(name)
    layers = dict(zip(dict(model.named_parameters()), model.parameter_layers(), strict=True))
    last = max(layers.values())
    assert last > 1
    assert {layers[key] for key in model.head_names} == {last}
    optim = OptimSpec(name="adamw", lr=1.0, layer_decay=0.5)
    rates = of_parameters(model, build_optimizers(model, optim), "peak_lr")
    assert rates == {name: 0.5 ** (last - layer) for name, layer in layers.items()}
    freeze(model, "backbone")
    assert {n for n, p in model.named_parameters() if p.requires_grad} == model.head_names
    freed = build(name)
    freeze(freed, 1)
    trained = {n for n, p in freed.named_parameters() if p.requires_grad}
    assert trained == {n for n, layer in layers.items() if layer > 1}


@pytest.mark.parametrize(
    "name", [*PLAIN, *(pytest.param(n, marks=pytest.mark.slow) for n in LARGE if LARGE[n][0])]
)
def test_the_captured_attention_is_what_timm_computes_with(name):
    model = build(name)
    images = torch.randn(2, *model.image_shape)
    logits, weights = model.forward_with_weights(images)
    assert_close(logits, model(images), rtol=1e-3, atol=1e-4)  # a fused attention rounds otherwise
    assert [*weights] == [*range(len(model.blocks))]
    count = model.num_prefix_tokens + model.grid_size[0] * model.grid_size[1]
    for each in weights.values():
        assert each.shape == (2, model.num_heads, count, count)
        assert_close(each.sum(-1), torch.ones(2, model.num_heads, count))
    grads = torch.autograd.grad(logits[:, 0].sum(), [*weights.values()])
    assert all(each.abs().sum() > 0 for each in grads)
    attention = model.blocks[0].attn
    assert attention.fused_attn == timm.create_model(name).blocks[0].attn.fused_attn
    assert_close(model.pool_weights(images).sum(1), torch.ones(2))


def test_the_pooling_of_each_kind_is_read():
    """The features are the tokens weighted by the pooling, where the pooling is a mean."""
    for name, kind in {"test_vit": "cls", "test_vit2": "mean", "test_vit3": "seq"}.items():
        model = build(name)
        images = torch.randn(2, *model.image_shape)
        assert model.pool_name == kind
        with torch.no_grad():
            shares, tokens = model.pool_weights(images), model.net.forward_features(images)
            pooled = (shares[..., None] * tokens).sum(1)
        if kind == "seq":
            images[:, :, :16, :16] += 5  # another patch, other shares
            assert not model.pool_weights(images).allclose(shares)
        else:
            assert_close(model.net.fc_norm(pooled), model.features(images))


@pytest.mark.parametrize("name", ["test_convnext", "test_resnet", "test_coatnet"])
def test_grad_cam_is_the_only_map_without_attention(name):
    """The map of a mean of places is relu(sum of channels, weighted by the class)."""
    model = build(name)
    images, classes = torch.randn(2, *model.image_shape), torch.tensor([1, 2])
    assert default_method(model) == "gradcam"
    request = MapRequest(model=model, images=images, layers=(-1,), classes=classes)
    found = METHODS["gradcam"](request)
    features = model.net.forward_features(images).detach().requires_grad_()
    logits = model.net.forward_head(features)
    (gradient,) = torch.autograd.grad(logits[[0, 1], classes].sum(), features)
    weights = gradient.mean((2, 3), keepdim=True)
    assert_close(found, (weights * features).sum(1).relu().detach())
    assert found.sum() > 0


def test_a_name_or_a_size_that_timm_refuses_is_one_line():
    for name in ("vit_tin", "hf-hub:timm/resnet18", "local-dir:/tmp"):
        with pytest.raises(ValueError, match="has no model"):
            build_model(spec(name))
    with pytest.raises(ValueError, match="timm refuses test_vit: ") as error:
        create_net(spec("test_vit"), embed_dim=63)
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="16x16 pixels, which do not divide 40x40"):
        build_model(spec("test_vit", side=40))
