"""ResNet-18 equals torchvision; every family refuses other images and gives features."""

from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torchvision
from torch import nn
from torch.testing import assert_close

from tests.core.specs import changed, small
from vitcli.core.inspect.cost import activation_bytes, forward_flops, parameters_by_part
from vitcli.core.models.image_model import ImageModel, build_model
from vitcli.core.models.resnet import ResNet18
from vitcli.core.models.vit import VisionTransformer, build_vit
from vitcli.core.nn.pos_embed import resize_positions
from vitcli.core.spec import FAMILIES, model_spec

SPEC = model_spec(family="resnet18", img_size=(32, 32), in_chans=3, num_classes=10)


def resnet(**fields: Any) -> ResNet18:
    return ResNet18(SPEC.replace(**fields)).initialise()


def abstract(**fields: Any) -> ResNet18:
    with torch.device("meta"):
        return resnet(**fields)


def test_parameters_belong_to_stem_stages_and_head():
    sizes = [1_856, 147_968, 525_568, 2_099_712, 8_393_728, 5_130]
    parts = parameters_by_part(abstract())
    assert [*parts] == ["stem", "stage 1", "stage 2", "stage 3", "stage 4", "head"]
    assert [*parts.values()] == sizes


@pytest.mark.parametrize("size", [(32, 32), (8, 8)])
def test_operations_equal_the_closed_form(size):
    """Each stage after the first halves the sides, doubles the width and has a 1x1 shortcut."""
    places, widths = size[0] * size[1], (64, 64, 128, 256, 512)
    total = places * 9 * 3 * 64
    for stage, (before, width) in enumerate(pairwise(widths)):
        places //= 4 if stage else 1
        shortcut = before * width if stage else 0
        total += places * (9 * before * width + 3 * 9 * width * width + shortcut)
    model = abstract(img_size=size)
    assert forward_flops(model, (3, *size)) == 2 * (total + 512 * 10)
    assert activation_bytes(model, (3, *size)) > 0


def plain_torchvision(ours: ResNet18, maxpool: nn.Module) -> nn.Module:
    theirs = torchvision.models.resnet18(weights=None, num_classes=10)
    theirs.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
    theirs.maxpool = maxpool
    weights = zip(theirs.state_dict(), ours.state_dict().values(), strict=True)
    theirs.load_state_dict(dict(weights))
    return theirs.double()


@pytest.mark.parametrize("training", [False, True])
def test_logits_and_gradients_equal_torchvision(training):
    ours = resnet(img_size=(16, 16)).double()
    for name, buffer in ours.named_buffers():
        if buffer.is_floating_point():
            buffer.add_(torch.rand_like(buffer) * (1 if "var" in name else 0.1))
    theirs = plain_torchvision(ours, nn.Identity())
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
    chosen = torch.stack(
        [tokens[index] for tokens, index in zip(model.encode(x), keep, strict=True)]
    )
    assert_close(model.encode(x, keep), chosen)


def test_positions_are_resized_like_an_image_and_the_prefix_stays():
    table = torch.randn(1, 1 + 16, 6)
    found = resize_positions(table, (4, 4), (2, 3))
    image = table[0, 1:].view(4, 4, 6).permute(2, 0, 1)[None]
    wanted = F.interpolate(image, size=(2, 3), mode="bilinear")[0].permute(1, 2, 0)
    assert_close(found[0, 1:], wanted.reshape(6, 6))
    assert_close(found[:, :1], table[:, :1])


def test_a_side_that_the_patch_does_not_divide_is_refused():
    with pytest.raises(ValueError, match="patch_size 4 does not divide images of 16x10"):
        vit().encode(images(16, 10))


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
