"""Pictures that are nearly the same are found, others are not, and a folder with them is named."""

import io
from collections.abc import Callable

import pytest
import torch
from PIL import Image, ImageDraw, ImageEnhance
from torch import Tensor
from torchvision.transforms.functional import pil_to_tensor, to_pil_image

from vitcli.core.generated.data_sets import generated_set
from vitcli.runner.data.near_copies import near_copies, pairs_alike

Change = Callable[[Image.Image], Image.Image]


def saved_again(picture: Image.Image) -> Image.Image:
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=40)
    return Image.open(file).convert("RGB")


CHANGES: dict[str, Change] = {
    "as it is": lambda picture: picture,
    "saved again": saved_again,
    "turned": lambda picture: picture.rotate(90),
    "mirrored": lambda picture: picture.transpose(Image.Transpose.FLIP_TOP_BOTTOM),
    "cut": lambda picture: picture.crop((10, 10, 118, 118)),
    "warmer": lambda picture: picture.convert("RGB", (1.1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0.9, 0)),
    "less vivid": lambda picture: ImageEnhance.Color(picture).enhance(0.7),
    "brighter": lambda picture: ImageEnhance.Brightness(picture).enhance(1.3),
}
RED, GREEN, BLUE = (255, 0, 0), (0, 130, 0), (60, 60, 255)


@pytest.fixture(scope="module")
def scenes() -> Tensor:
    return generated_set("scenes").draw(300, 10)[0].pixels


def changed(pixels: Tensor, change: Change) -> Tensor:
    large = to_pil_image(pixels).resize((128, 128), Image.Resampling.BICUBIC)
    return pil_to_tensor(change(large).resize((32, 32), Image.Resampling.BICUBIC))


@pytest.mark.parametrize("name", CHANGES)
def test_a_copy_is_found_whichever_side_was_changed(scenes, name):
    copies = torch.stack([changed(pixels, CHANGES[name]) for pixels in scenes[:100]])
    wanted = {(row, row) for row in range(100)}
    for pairs in (near_copies(copies, scenes), near_copies(scenes[:100], copies)):
        assert len({*pairs} & wanted) >= 98
        assert len({*pairs} - wanted) <= 2


def test_other_pictures_flat_ones_and_noise_are_no_copies(scenes):
    assert len(near_copies(scenes[:100], scenes[100:])) <= 2
    flat = torch.full((4, 3, 32, 32), 90, dtype=torch.uint8)
    noise = torch.randint(256, (50, 3, 32, 32), dtype=torch.uint8)
    assert near_copies(flat, flat) == near_copies(noise[:25], noise[25:]) == []


def lamp(colour: tuple[int, ...], place: int = 8) -> Tensor:
    picture = Image.new("RGB", (32, 32), (10, 10, 10))
    ImageDraw.Draw(picture).ellipse((place, place, place + 16, place + 16), fill=colour)
    return pil_to_tensor(picture)


def tinted(colour: tuple[int, ...], seed: int = 0) -> Tensor:
    grain = torch.randint(100, (1, 8, 8), generator=torch.Generator().manual_seed(seed))
    tint = torch.tensor(colour).view(3, 1, 1) // 3
    return (grain.repeat_interleave(4, 1).repeat_interleave(4, 2) + tint).byte()


@pytest.mark.parametrize("draw", [lamp, tinted])
def test_the_same_shape_in_another_colour_is_no_copy(draw):
    pictures = torch.stack([draw(colour) for colour in (RED, GREEN, BLUE)])
    assert near_copies(pictures[:1], pictures[1:]) == pairs_alike(pictures).tolist() == []
    assert len(pairs_alike(pictures, in_colour=False)) == 3
    again = torch.stack([draw(GREEN), draw(RED)])
    assert near_copies(pictures[:1], again) == [(0, 1)]
    assert not len(pairs_alike(pictures.repeat_interleave(3, dim=1))), "nine channels"
    assert len(pairs_alike(pictures.repeat_interleave(70, dim=0))) == 3 * 70 * 69 // 2


@pytest.mark.parametrize(
    ("first", "other"),
    [((0, 60, 255), (0, 200, 255)), (RED, (255, 80, 0)), ((60, 60, 60), (99, 99, 99))],
)
def test_a_near_colour_or_brightness_tells_two_classes_apart(first, other):
    pictures = torch.stack([lamp(first), lamp(other)])
    labels = torch.arange(2)
    assert len(pairs_alike(pictures)) == 1
    assert not len(pairs_alike(pictures, labels))
    assert near_copies(pictures[:1], pictures[1:], (labels[:1], labels[1:])) == []
    assert not len(pairs_alike(pictures[:, 1:2], labels)), "grey"


@pytest.mark.parametrize("name", ["saved again", "turned", "mirrored", "cut"])
def test_a_copy_with_another_label_is_found(scenes, name):
    copies = torch.stack([changed(pixels, CHANGES[name]) for pixels in scenes[:100]])
    labels = torch.zeros(100), torch.ones(300)
    assert len({*near_copies(copies, scenes, labels)} & {(row, row) for row in range(100)}) >= 98


def test_all_pairs_that_look_alike_are_found_once(scenes):
    pictures = torch.cat([scenes[:50], scenes[:50].rot90(1, (-2, -1)), scenes[3:4].flip(-1)])
    found = {*map(tuple, pairs_alike(pictures).tolist())}
    assert {(100, 3), (100, 53), *((row + 50, row) for row in range(50))} <= found
    assert len(found) <= 54
    assert all(a > b for a, b in found)
