"""ResNet-18 equals torchvision, ConvNet its paper; every family refuses other images."""

from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torchvision
from torch import nn
from torch.testing import assert_close

from tests.core.specs import changed, small
from vitcli.core.inspect.cost import count_parameters, forward_flops
from vitcli.core.models.convnet import ConvNet
from vitcli.core.models.image_model import ImageModel, build_model
from vitcli.core.models.resnet import ResNet18
from vitcli.core.models.vit import VisionTransformer, build_vit
from vitcli.core.nn.conv_stages import BIAS_RATE, Norm, Whitening
from vitcli.core.nn.pool import ClsPool
from vitcli.core.nn.pos_embed import resize_positions
from vitcli.core.randomness import keyed_generator
from vitcli.core.spec import FAMILIES, OptimSpec, model_spec
from vitcli.core.train.optim import build_optimizers

SPEC = model_spec(family="resnet18", img_size=(32, 32), in_chans=3, num_classes=10)


def resnet(**fields: Any) -> ResNet18:
    return ResNet18(SPEC.replace(**fields)).initialise()


@pytest.mark.parametrize("training", [False, True])
def test_logits_and_gradients_equal_torchvision(training):
    ours = resnet(img_size=(16, 16)).double()
    for name, buffer in ours.named_buffers():
        if buffer.is_floating_point():
            buffer.add_(torch.rand_like(buffer) * (1 if "var" in name else 0.1))
    theirs = torchvision.models.resnet18(weights=None, num_classes=10)
    theirs.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
    theirs.maxpool = nn.Identity()
    weights = zip(theirs.state_dict(), ours.state_dict().values(), strict=True)
    theirs.load_state_dict(dict(weights))
    theirs.double()
    images = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    logits = [model.train(training)(images) for model in (ours, theirs)]
    assert_close(logits[0], logits[1])
    for each in logits:
        each.square().sum().backward()
    pairs = zip(ours.parameters(), theirs.parameters(), strict=True)
    assert all(torch.allclose(one.grad, other.grad) for one, other in pairs)
    for one, other in zip(ours.buffers(), theirs.buffers(), strict=True):
        assert_close(one, other)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("shape", [(3, 16, 20), (1, 16, 16)])
def test_images_of_another_size_are_refused(family, shape):
    model = build_model(small(family))
    with pytest.raises(ValueError, match="3x16x16 .*, got {}x{}x{}".format(*shape)):
        model(torch.randn(2, *shape))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_family_provides_what_the_runner_needs(family):
    spec = small(family, img_size=(16, 8), in_chans=2, num_classes=7)
    model = build_model(spec)
    assert isinstance(model, ImageModel)
    assert (model.spec, model.image_shape, model.num_classes) == (spec, (2, 16, 8), 7)
    assert [name for name, _ in model.head.named_parameters()]
    x = torch.randn(3, 2, 16, 8)
    assert model(x).shape == (3, 7)
    features = model.eval().features(x)
    assert features.shape == (3, model.num_features)
    assert_close(model.head(features), model(x))
    for name in ("img_size", "in_chans", "num_classes"):
        with pytest.raises(ValueError, match="must be set"):
            build_model(spec.replace(**{name: None}))


TABLES = ("none", "learned", "sincos1d", "sincos2d")


def vit(**fields: Any) -> VisionTransformer:
    model = build_vit(changed(**fields), 0).eval()
    if fields.get("pos_embed") == "learned":
        torch.nn.init.normal_(model.get_parameter("pos_embed.table"))
    return model


def images(*shape: int) -> torch.Tensor:
    return torch.randn(2, 3, *shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("pos_embed", TABLES)
@pytest.mark.parametrize("pool", ["cls", "mean"])
def test_all_patches_of_the_own_grid_give_the_plain_features(pos_embed, pool):
    model = vit(pos_embed=pos_embed, pool=pool, reg_tokens=1, pos_embed_prefix=True)
    x = images(16, 16)
    assert_close(model.encode(x), model.forward_features(x))
    everything = torch.arange(16).expand(2, -1)
    assert_close(model.encode(x, everything), model.forward_features(x))
    assert_close(model.head(model.features(x)), model(x))


def test_an_own_pooling_gets_all_tokens_although_it_extends_that_of_cls():
    class Mean(ClsPool):
        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return tokens.mean(1)

    model, x = vit(pool="cls"), images(16, 16)
    model.pool = Mean(model.token_shape)
    assert_close(model.features(x), model.forward_features(x).mean(1))


@pytest.mark.parametrize("pos_embed", TABLES)
def test_patches_that_are_not_kept_change_nothing(pos_embed):
    model, keep = vit(pos_embed=pos_embed), torch.tensor([[5, 0, 9], [15, 2, 3]])
    x, hidden = images(16, 16), torch.ones(2, 16, dtype=torch.bool).scatter(1, keep, False)
    pixels = hidden.view(2, 1, 4, 1, 4, 1).expand(-1, 3, -1, 4, -1, 4).reshape(2, 3, 16, 16)
    other = torch.where(pixels, images(16, 16).flip(0) * 7, x)
    assert_close(model.encode(x, keep), model.encode(other, keep))
    assert not torch.allclose(model.encode(x), model.encode(other)), "the control: they matter"


def test_a_kept_patch_has_the_position_of_its_place():
    model = vit(pos_embed="learned", pool="mean", depth=0, norm="none")
    x, keep = images(16, 16), torch.tensor([[5, 0, 9], [15, 2, 3]])
    chosen = model.encode(x)[torch.arange(2)[:, None], keep]
    assert_close(model.encode(x, keep), chosen)


def test_positions_are_resized_like_an_image_and_the_prefix_stays():
    table = torch.randn(1, 1 + 16, 6)
    found = resize_positions(table, (4, 4), (2, 3))
    image = table[0, 1:].view(4, 4, 6).permute(2, 0, 1)[None]
    wanted = F.interpolate(image, size=(2, 3), mode="bilinear")[0].permute(1, 2, 0)
    assert_close(found[0, 1:], wanted.reshape(6, 6))
    assert_close(found[:, :1], table[:, :1])


@pytest.mark.parametrize(
    ("slot", "name"),
    [
        *(("pos_embed", "rope2d"), ("pos_embed", "relative"), ("ffn", "depthwise")),
        *(("attention", "linformer"), ("attention", "strided"), ("attention", "local")),
    ],
)
def test_a_model_that_needs_its_grid_refuses_another(slot, name):
    model, own = vit(**{slot: name}), images(16, 16)
    model.encode(own)
    for other in ((images(8, 8),), (own, torch.tensor([[0], [1]]))):
        with pytest.raises(ValueError, match=f"'{name}' needs all patches of the grid"):
            model.encode(*other)
    with pytest.raises(ValueError, match="patch_size 4 does not divide images of 16x10"):
        vit().encode(images(16, 10))


WIDTHS = (64, 256, 256)
"""Widths of the network in the paper."""


def convnet(size: int = 16, widths: tuple[int, ...] = (32, 40)) -> ConvNet:
    sizes = {"img_size": (size, size), "in_chans": 3, "num_classes": 10}
    model = build_model(model_spec(family="convnet", **sizes, widths=widths), seed=0)
    assert isinstance(model, ConvNet)
    return model


def test_the_default_is_the_network_of_the_paper():
    """Parameters and operations of airbench94, whose 24 filters of 3x2x2 have biases too."""
    with torch.device("meta"):
        model = convnet(32, WIDTHS)
    assert model_spec(family="convnet").widths == WIDTHS
    channels, stages = (24, *WIDTHS), []
    total = 31 * 31 * 12 * 24
    for (before, after), side in zip(pairwise(channels), (31, 15, 7), strict=True):
        total += 9 * after * (side**2 * before + (side // 2) ** 2 * after)
        stages.append(9 * after * (before + after) + 2 * after)
    assert forward_flops(model, (3, 32, 32)) == 2 * (total + 256 * 10)
    parts = (model.stem, *model.stages, model.head)
    assert [*map(count_parameters, parts)] == [24, *stages, 2560]


@pytest.mark.parametrize("in_chans", [1, 3])
def test_the_fixed_filters_are_orthonormal_and_have_both_signs(in_chans):
    whitening = Whitening(in_chans)
    filters = whitening.filters.flatten(1)
    half = 4 * in_chans
    assert_close(filters[:half] @ filters[:half].T, torch.eye(half))
    assert_close(filters[half:], -filters[:half])
    assert "filters" not in whitening.state_dict()


def test_neighbouring_pixels_become_uncorrelated():
    """In smooth grey noise, a pixel resembles its neighbours; after the filters, none does."""
    noise = torch.randn(64, 1, 34, 34, generator=keyed_generator("noise"))
    smooth = F.avg_pool2d(noise, 3, stride=1)
    patches = F.unfold(smooth, 2).transpose(0, 1).flatten(1)
    filtered = F.conv2d(smooth, Whitening(1).filters[:4]).transpose(0, 1).flatten(1)
    largest = [(torch.corrcoef(x) - torch.eye(4)).abs().max() for x in (patches, filtered)]
    assert largest[0] > 0.6
    assert largest[1] < 0.05


def test_the_first_filters_copy_their_channel():
    conv = convnet().stages[1][0]
    x = torch.randn(2, 32, 5, 5)
    assert_close(conv(x)[:, :32], x)
    assert conv.weight[32:].std().item() == pytest.approx((9 * 32 * 3) ** -0.5, rel=0.05)


def test_biases_have_64_times_the_learning_rate():
    """A step of SGD with weight decay on a bias b = 8 p is one with the 64-fold rate on b."""
    norm = Norm(4).double().eval()
    torch.nn.init.normal_(norm.bias, generator=keyed_generator("bias"))
    bias = (8 * norm.bias).detach().requires_grad_()
    x = torch.randn(3, 4, 2, 2, dtype=torch.float64)
    spec = OptimSpec(name="sgd", lr=0.01, weight_decay=0.1, decay_all=True, momentum=0)
    (optimizer,) = build_optimizers(norm, spec)
    assert_close(norm(x), F.gelu(norm.norm(x) + bias[:, None, None]))
    norm(x).square().sum().backward()
    F.gelu(norm.norm(x) + bias[:, None, None]).square().sum().backward()
    optimizer.step()
    torch.optim.SGD([bias], lr=0.01 * BIAS_RATE, weight_decay=0.1 / BIAS_RATE).step()
    assert_close(8 * norm.bias, bias)


def test_the_smallest_images_leave_one_row():
    fields = {"family": "convnet", "in_chans": 3, "num_classes": 2, "widths": (4, 4, 4)}
    model = build_model(model_spec(img_size=(9, 20), **fields))
    assert model.forward_features(torch.randn(2, 3, 9, 20)).shape == (2, 4, 1, 2)
