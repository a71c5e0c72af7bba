"""The explorer in a real browser: mouse, keys and touch show the model's numbers."""

import json
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from tests.plugins.live.scenes import (
    PREFIX,
    close_to,
    colour_at,
    make_model,
    middle,
    patch,
    place,
    scene_of,
    state,
    text,
    values,
)
from vitcli.plugins.live.page import page

pytestmark = pytest.mark.browser


def test_hovering_shows_what_a_patch_attends_to(visit, scene):
    shown = visit(page([scene]))
    close_to(values(shown), scene.attention[2].mean(0)[0], scene.attention[2, :, 0].max())
    for row, column in ((0, 0), (3, 5), (7, 7)):
        shown.move(*place(shown, scene, row, column))
        token = patch(scene, row, column)
        found = state(shown)
        assert (found["query"], found["pinned"]) == (str(token), "false")
        rows = scene.attention[2, :, token]
        close_to(values(shown), rows.mean(0), rows.max())
        assert text(shown, "who") == f"Row {row + 1}, column {column + 1}"
    shown.move(*place(shown, scene, 3, -1))
    assert state(shown)["query"] == "0", "there is no patch outside the model's input"


def test_a_click_or_tap_pins_and_a_second_one_or_escape_unpins(visit, scene):
    shown = visit(page([scene]))
    shown.click(*place(shown, scene, 2, 2))
    shown.move(*place(shown, scene, 5, 5))
    pinned = state(shown)
    assert (pinned["query"], pinned["pinned"]) == (str(patch(scene, 2, 2)), "true")
    shown.press("Escape")
    free = state(shown)
    assert (free["query"], free["pinned"]) == (str(patch(scene, 5, 5)), "false")
    for _ in range(2):
        shown.click(*place(shown, scene, 1, 6))
    assert state(shown)["pinned"] == "false", "a second click on the patch unpins it, too"
    phone = visit(page([scene]), size=(390, 844), phone=True)
    for is_pinned in ("true", "false"):
        phone.tap(*place(phone, scene, 6, 1))
        phone.wait(f"document.querySelector('.explorer').dataset.pinned === '{is_pinned}'")


def test_keys_choose_patch_layer_and_head(visit, scene):
    shown = visit(page([scene]))
    shown.press("ArrowRight")
    assert state(shown)["query"] == str(patch(scene, 4, 4)), "from the middle"
    for key in ("ArrowUp", "ArrowLeft", "ArrowLeft", "[", "2"):
        shown.press(key)
    found = state(shown)
    token = patch(scene, 3, 2)
    assert (found["query"], found["layer"], found["head"]) == (str(token), "2", "2")
    close_to(values(shown), scene.attention[1, 1, token])
    shown.press("r")
    close_to(values(shown), scene.rollout[1, token])
    for key, layer in (("]", "3"), ("]", "3"), ("[", "2"), ("[", "1"), ("[", "1")):
        shown.press(key)
        assert state(shown)["layer"] == layer
    presses = (("h", "head", "mean"), (",", "head", "3"), ("c", "query", "0"), ("c", "query", "1"))
    for key, name, value in presses:
        shown.press(key)
        assert state(shown)[name] == value
    close_to(values(shown), scene.attention[0, 2, 1])
    shown.press("s")
    assert state(shown)["scale"] == "shared"
    shown.press("?")
    assert shown.evaluate("document.querySelector('dialog').open")
    shown.press("]")
    assert state(shown)["layer"] == "1", "an open dialog keeps the keys"


def test_play_goes_through_the_layers_and_stops(visit, scene):
    shown = visit(page([scene]))
    is_pressed = "document.querySelector('.play').getAttribute('aria-pressed')"
    for key in ("[", "[", " "):
        shown.press(key)
    assert (state(shown)["layer"], shown.evaluate(is_pressed)) == ("1", "true")
    shown.wait("document.querySelector('.explorer').dataset.layer === '3'")
    assert shown.evaluate(is_pressed) == "false"


def test_the_small_maps_choose_layer_and_head(visit, scene):
    shown = visit(page([scene]))
    assert shown.evaluate("document.querySelectorAll('.map').length") == 3 * (3 + 2)
    shown.click(*middle(shown, '[aria-label="layer 1, head 3"]'))
    found = state(shown)
    assert (found["layer"], found["head"]) == ("1", "3")
    close_to(values(shown), scene.attention[0, 2, 0])
    shown.press("ArrowDown")
    shown.press("ArrowRight")
    found = state(shown)
    assert (found["layer"], found["head"], found["query"]) == ("2", "mean", "0")
    focus = shown.evaluate("document.activeElement.getAttribute('aria-label')")
    assert focus == "layer 2, mean"
    shown.click(*middle(shown, ".token:nth-child(2)"))
    assert (state(shown)["query"], text(shown, "who")) == ("1", "Register 1")


def test_edges_are_the_strongest_of_all_patches(visit, scene):
    count = 5
    with_self_attention = (scene.attention + np.eye(scene.attention.shape[-1])) / 2
    scene = replace(scene, attention=with_self_attention)
    shown = visit(page([scene]))
    for key in "1ee":
        shown.press(key)
    before = colour_at(shown, *place(shown, scene, 0, 0))
    shown.press("e")
    shown.evaluate(
        f"(() => {{ const range = document.querySelector('.count'); range.value = {count};"
        " range.dispatchEvent(new Event('input')); })()"
    )
    edges = json.loads(state(shown)["edges"])
    weights = scene.attention[2, 0, PREFIX:, PREFIX:].astype(float)
    np.fill_diagonal(weights, 0)
    expected = np.sort(weights.ravel())[::-1][:count]
    step = float(scene.attention[2, 0].max()) / 255
    assert_allclose([share for _, _, share in edges], expected, atol=step)
    for query, key, share in edges:
        assert query != key
        assert share == pytest.approx(weights[query - PREFIX, key - PREFIX], abs=step)
    shown.press("e")
    assert state(shown)["edges"] == ""
    assert colour_at(shown, *place(shown, scene, 0, 0)) == before


def test_without_cls_the_read_out_is_a_query_of_its_own(visit):
    scene = scene_of(make_model(pool="seq", reg_tokens=0))
    shown = visit(page([scene]))
    assert state(shown)["query"] == "read-out"
    rows = scene.reading @ scene.attention[2]
    close_to(values(shown), rows.mean(0), rows.max())
    assert text(shown, "who").startswith("Read-out, ")
    assert shown.evaluate("document.querySelector('.to-prefix').hidden")


def test_several_pictures_are_chosen_by_their_thumbnails(visit):
    model, other = make_model(), make_model(depth=2, num_heads=2, img_size=(16, 32))
    scenes = [scene_of(model), scene_of(other, name="y.png", box=(0, 0, 50, 100))]
    shown = visit(page(scenes))
    shown.press("3")
    shown.click(*place(shown, scenes[0], 7, 7))
    close_to(values(shown), scenes[0].attention[2, 2, -1])
    shown.click(*middle(shown, ".picture:nth-child(2)"))
    shown.wait("document.querySelector('.explorer').dataset.scene === '1'")
    found = state(shown)
    assert (found["layer"], found["head"], found["query"]) == ("2", "mean", "0")
    assert text(shown, "name") == "y.png"
    assert shown.console_messages() == []
    alone = visit(page(scenes[:1]))
    assert alone.evaluate("document.querySelector('.pictures').offsetHeight") == 0
