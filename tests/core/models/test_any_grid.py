"""A Vision Transformer on other grids of patches, and on a selection of patches."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from vitcli.core.models.build import build_model
from vitcli.core.models.vit import VisionTransformer, build_vit
from vitcli.core.nn.pos_embed import resize_positions
from vitcli.core.spec import FAMILIES, VitSpec, model_spec

TABLES = ("none", "learned", "sincos1d", "sincos2d")


def vit(**fields: Any) -> VisionTransformer:
    sizes: dict[str, Any] = {"img_size": (16, 16), "in_chans": 3, "num_classes": 5}
    small = {"embed_dim": 16, "depth": 2, "num_heads": 2, "patch_size": 4}
    spec = VitSpec(**sizes | small | fields)
    model = build_vit(spec, 0).eval()
    if spec.pos_embed == "learned":
        torch.nn.init.normal_(model.get_parameter("pos_embed.table"))
    return model


def images(*shape: int) -> torch.Tensor:
    return torch.randn(2, 3, *shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("pos_embed", TABLES)
@pytest.mark.parametrize("pool", ["cls", "mean"])
def test_all_patches_of_the_own_grid_give_the_plain_features(pos_embed, pool):
    model = vit(pos_embed=pos_embed, pool=pool, reg_tokens=1, pos_embed_prefix=True)
    x = images(16, 16)
    torch.testing.assert_close(model.encode(x), model.forward_features(x))
    everything = torch.arange(16).expand(2, -1)
    torch.testing.assert_close(model.encode(x, everything), model.forward_features(x))
    torch.testing.assert_close(model.head(model.features(x)), model(x))


@pytest.mark.parametrize("pos_embed", TABLES)
def test_patches_that_are_not_kept_change_nothing(pos_embed):
    model, keep = vit(pos_embed=pos_embed), torch.tensor([[5, 0, 9], [15, 2, 3]])
    x, hidden = images(16, 16), torch.ones(2, 16, dtype=torch.bool).scatter(1, keep, False)
    pixels = hidden.view(2, 1, 4, 1, 4, 1).expand(-1, 3, -1, 4, -1, 4).reshape(2, 3, 16, 16)
    other = torch.where(pixels, images(16, 16).flip(0) * 7, x)
    torch.testing.assert_close(model.encode(x, keep), model.encode(other, keep))
    assert not torch.allclose(model.encode(x), model.encode(other)), "the control: they matter"


def test_a_kept_patch_has_the_position_of_its_place():
    model = vit(pos_embed="learned", pool="mean", depth=0, norm="none")
    x, keep = images(16, 16), torch.tensor([[5, 0, 9], [15, 2, 3]])
    chosen = torch.stack(
        [tokens[index] for tokens, index in zip(model.encode(x), keep, strict=True)]
    )
    torch.testing.assert_close(model.encode(x, keep), chosen)


def test_positions_are_resized_like_an_image_and_the_prefix_stays():
    table = torch.randn(1, 1 + 16, 6)
    found = resize_positions(table, (4, 4), (2, 3))
    image = table[0, 1:].view(4, 4, 6).permute(2, 0, 1)[None]
    wanted = F.interpolate(image, size=(2, 3), mode="bilinear")[0].permute(1, 2, 0)
    torch.testing.assert_close(found[0, 1:], wanted.reshape(6, 6))
    torch.testing.assert_close(found[:, :1], table[:, :1])


def test_a_side_that_the_patch_does_not_divide_is_refused():
    with pytest.raises(ValueError, match="patch_size 4 does not divide images of 16x10"):
        vit().encode(images(16, 10))


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"pos_embed": "rope2d"}, "rope2d"),
        ({"pos_embed": "relative"}, "relative"),
        ({"attention": "linformer"}, "linformer"),
        ({"attention": "strided"}, "strided"),
        ({"attention": "local"}, "local"),
        ({"ffn": "depthwise"}, "depthwise"),
    ],
)
def test_a_model_that_needs_its_grid_refuses_another(fields, name):
    model = vit(**fields)
    model.encode(images(16, 16))
    for call in (lambda: model.encode(images(8, 8)), lambda: model.encode(images(16, 16), KEEP)):
        with pytest.raises(ValueError, match=f"'{name}' needs all patches of the grid"):
            call()


KEEP = torch.tensor([[0], [1]])


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_features_that_enter_its_head(family):
    sizes = {"img_size": 32, "in_chans": 3, "num_classes": 5}
    spec = model_spec(family=family, **FAMILIES[family].small, **sizes)
    model = build_model(spec, 0).eval()
    x = images(32, 32)
    assert model.features(x).shape == (2, model.num_features)
    torch.testing.assert_close(model.head(model.features(x)), model(x))
