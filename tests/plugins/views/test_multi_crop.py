"""Views: reproducible, independent of the split into batches, and what the fields say."""

import colorsys

import torch
import torch.nn.functional as F
from torch.testing import assert_close

from tests.plugins.views.viewing import view_spec
from vitcli.core.randomness import keyed_generator
from vitcli.plugins.views import view_task

NUM = 24


def spec(**fields):
    return view_spec("lejepa", {"task": fields}).task


def images(count=NUM, size=16, channels=3):
    generator = torch.Generator().manual_seed(3)
    return torch.randint(256, (count, channels, size, size), dtype=torch.uint8, generator=generator)


def draw(task, kind="global", count=NUM, channels=3):
    return view_task.draw_views(count, channels, task, kind, keyed_generator("test"))


def test_rows_follow_the_image_and_not_its_place_in_the_order():
    rows = view_task.view_rows(NUM, 3, spec(), seed=1, epoch=0)
    key = keyed_generator(1, 0, "views", "global")
    table = view_task.draw_views(NUM, 3, spec(), "global", key)
    assert torch.equal(rows["global.box"], table["box"][rows["index"]])


def test_a_crop_is_the_whole_image_or_the_resized_window():
    box = torch.tensor([[[0.0, 0.0, 1.0, 1.0], [1.0, 0.0, -1.0, 1.0]]]).expand(NUM, 2, 4)
    pixels = images().float()
    found = view_task.crop_views(pixels, box, (16, 16))
    assert_close(found[:, 0], pixels, atol=1e-3, rtol=0)
    assert_close(found[:, 1], pixels.flip(-1), atol=1e-3, rtol=0)
    box = torch.tensor([[[0.25, 0.5, 0.5, 0.25]]]).expand(NUM, 1, 4)  # 8 x 4 pixels of 16
    found = view_task.crop_views(pixels, box, (8, 16))[:, 0]
    wide = F.interpolate(pixels, size=(32, 32), mode="bilinear")  # each pixel becomes 2 x 2
    assert_close(found, wide[:, :, 16:24, 8:24], atol=1e-3, rtol=0)


def test_boxes_have_the_areas_and_stay_inside():
    box = view_task.draw_boxes((2000, 2), (0.1, 0.4), 0.5, keyed_generator("boxes"))
    left, top, width, height = box.unbind(-1)
    area = width.abs() * height
    assert 0.1 - 1e-5 <= area.min() < 0.12
    assert 0.38 < area.max() <= 0.4 + 1e-5
    assert 0.45 < (width < 0).float().mean() < 0.55
    for edge in (left, left + width, top, top + height):
        assert -1e-6 <= edge.min() < edge.max() <= 1 + 1e-6


def test_a_crop_has_its_shape_in_pixels():
    """Images twice as wide as high; local views are square."""
    for kind, size, factor in (("local", None, 2), ("global", 8, 2), ("global", None, 1)):
        small = {"global_scale": (0.1, 0.2), "local_scale": (0.1, 0.2)}
        task, generator = spec(global_size=size, **small), keyed_generator("shape")
        box = view_task.draw_views(2000, 3, task, kind, generator, (16, 32))["box"]
        ratio = factor * box[..., 2].abs() / box[..., 3]
        assert 3 / 4 - 1e-3 <= ratio.min() < 0.8
        assert 1.25 < ratio.max() <= 4 / 3 + 1e-3


def test_grey_views_are_the_luma_and_probability_zero_changes_nothing():
    pixels = images().float()[:, None] / 255
    plain = draw(spec(jitter=0.0, gray=0.0))["color"][:, :1]
    assert torch.equal(view_task.mix_colors(pixels, plain), pixels)
    gray = draw(spec(jitter=0.0, gray=1.0))["color"][:, :1]
    red, green, blue = pixels.unbind(2)
    luma = 0.299 * red + 0.587 * green + 0.114 * blue
    assert_close(view_task.mix_colors(pixels, gray), luma[:, :, None].expand_as(pixels))


def test_hue_turns_pure_colours_as_a_colour_wheel_does():
    """A third of a turn about the grey axis maps red to green, as in HSV."""
    turn = view_task.turn_hue(torch.tensor(2 * torch.pi / 3))
    red = torch.tensor(colorsys.hsv_to_rgb(0.0, 1.0, 1.0))
    green = torch.tensor(colorsys.hsv_to_rgb(1 / 3, 1.0, 1.0))
    assert_close(turn @ red, green)
    assert_close(turn @ torch.ones(3), torch.ones(3))


def test_jitter_has_its_strengths():
    """Hue and saturation keep greys, so the grey axis shows brightness and contrast alone."""
    color = draw(spec(jitter=1.0, gray=0.0), count=2000)["color"]
    scale, shift = color[..., :3].sum(-1), color[..., 3]  # of greys, for each channel
    assert_close(scale, scale[..., :1].expand_as(scale))
    contrast = 1 - 2 * shift[..., 0]  # contrast pulls towards 0.5
    brightness = scale[..., 0] / contrast
    for strength in (contrast, brightness):
        assert 0.599 < strength.min() < 0.61
        assert 1.39 < strength.max() < 1.401


def test_blur_keeps_the_mean_and_spreads_a_point():
    point = torch.zeros(1, 1, 1, 9, 9)
    point[..., 4, 4] = 1
    found = view_task.blur(point, torch.tensor([[0.25]]))[0, 0, 0]
    row = torch.tensor([0.25, 0.5, 0.25])
    assert_close(found[3:6, 3:6], row[:, None] * row)
    assert found.sum() == 1
    assert torch.equal(view_task.blur(point, torch.zeros(1, 1)), point)


def test_only_the_second_global_view_is_solarised():
    tables = draw(spec(solarize=1.0))
    assert tables["solarize"].tolist() == [[False, True]] * NUM
    assert "solarize" not in draw(spec(solarize=1.0), "local")
    plain = {name: tables[name] for name in ("box", "color")}
    left, right = (view_task.make_views(images(), t, (16, 16)) for t in (plain, tables))
    assert torch.equal(left[:, 0], right[:, 0])
    assert_close(right[:, 1], torch.where(left >= 127.5, 255 - left, left)[:, 1])
