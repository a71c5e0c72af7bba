"""The page with a model inside, for its user: photos, removal, keys, screens, a wrong browser."""

import io
import json

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from PIL import Image

from tests.browser.explorer import middle, state, text, values
from tests.browser.live import SHIP, bundled, drop, live_page, logits
from vitcli.runner.attn_map.explain import Explainer

pytestmark = pytest.mark.browser

LAST = 4
"""The last layer of the bundled model, counted from 0."""


@pytest.fixture(scope="module")
def content() -> bytes:
    return live_page(bundled(), layers=[LAST], heads=[2], method="head")


def png(size: tuple[int, int] = (50, 40)) -> bytes:
    pixels = np.random.default_rng(1).integers(0, 256, (*size, 3), dtype=np.uint8)
    with io.BytesIO() as file:
        Image.fromarray(pixels).save(file, "png")
        return file.getvalue()


def test_the_maps_are_those_of_python_and_the_mean_leaves_out_removed_heads(visit, content):
    predictor = bundled()
    batch = Explainer(predictor, by_class=False).explain(str(SHIP)).batch
    with torch.no_grad():
        weights = predictor.model.attention_weights(batch)[LAST][0].mean(1)  # of the read-out
    shown = visit(content)
    assert_allclose(values(shown), weights[1], atol=1e-5)
    shown.press("h")
    assert_allclose(values(shown), weights.mean(0), atol=1e-5)
    for key in "2Xh":
        shown.press(key)
    assert_allclose(values(shown), weights[[0, 2, 3]].mean(0), atol=1e-5)
    assert not np.allclose(values(shown), weights.mean(0), atol=1e-4)


def test_heads_and_patches_are_removed_and_restored_by_keys(visit, content):
    shown = visit(content)
    whole = logits(shown)
    shown.press("X")
    one = logits(shown)
    assert json.loads(state(shown)["removedHeads"]) == [f"{LAST} 1"]
    shown.press("ArrowUp")
    shown.press("x")
    two = logits(shown)
    assert json.loads(state(shown)["removedPatches"]) == [8 * 4 + 4]
    assert np.abs(one - whole).max() > 1e-3
    assert np.abs(two - one).max() > 1e-3
    chips = "[...document.querySelectorAll('.chip')].map(chip => chip.textContent)"
    assert shown.evaluate(chips) == [f"layer {LAST + 1}, head 2", "row 5, column 5"]
    labels = "[...document.querySelectorAll('.map')].map(map => map.getAttribute('aria-label'))"
    removed = [label for label in shown.evaluate(labels) if label.endswith("removed")]
    assert removed == [f"layer {LAST + 1}, head 2, removed"]
    shown.press("u")
    assert (logits(shown) == whole).all()
    assert text(shown, "others") == ""


def test_heads_and_patches_are_removed_and_restored_by_mouse(visit, content):
    shown = visit(content, size=(1280, 1200))
    whole = logits(shown)
    shown.click(*middle(shown, ".remove-patches"))
    x, y = middle(shown, ".stage")  # the corner of four patches
    shown.click(x + 5, y + 5)
    found = state(shown)
    assert json.loads(found["removedPatches"]) == [8 * 4 + 4]
    assert found["pinned"] == "false"
    shown.click(*middle(shown, ".remove-head"))
    assert json.loads(state(shown)["removedHeads"]) == [f"{LAST} 1"]
    shown.click(*middle(shown, ".chip:nth-child(2)"))
    assert json.loads(state(shown)["removedPatches"]) == []
    shown.click(*middle(shown, ".restore"))
    assert (logits(shown) == whole).all()


def test_photos_are_added_kept_and_classified_again(visit, content):
    shown = visit(content)
    first = logits(shown)
    drop(shown, "noise.png", png())
    second = logits(shown)
    assert np.abs(second - first).max() > 0.1
    assert text(shown, "check") == "", "Python has not seen this picture"
    shown.press("X")
    removed = logits(shown)
    shown.click(*middle(shown, ".picture:nth-child(1)"))
    shown.wait("document.querySelector('.name').textContent === 'ship.jpg'")
    assert not np.allclose(logits(shown), first), "the head is still removed"
    assert not np.allclose(logits(shown), removed)
    document = shown.call("DOM.getDocument")["root"]["nodeId"]
    node = shown.call("DOM.querySelector", nodeId=document, selector=".file")["nodeId"]
    shown.call("DOM.setFileInputFiles", nodeId=node, files=[str(SHIP)])
    shown.wait("document.querySelectorAll('.picture').length === 3")
    shown.wait("document.querySelector('.explorer').dataset.scene === '2'")
    assert text(shown, "prediction strong") == "ship"
    assert shown.requests() == []
    assert shown.console_messages() == []


@pytest.mark.parametrize(
    ("name", "content_of_file", "told"),
    [
        ("<b>.png", b"no picture", "<b>.png: this browser cannot read it"),
        ("long.png", png((2, 50)), "long.png: 50x2 has an aspect ratio over 20:1"),
    ],
)
def test_a_file_that_is_no_photo_is_refused_in_a_sentence(
    visit, content, name, content_of_file, told
):
    shown = visit(content)
    drop(shown, name, content_of_file)
    assert text(shown, "complaint").startswith(told)
    assert text(shown, "name") == "ship.jpg"
    assert shown.evaluate("document.querySelectorAll('.picture').length") == 1


def test_a_browser_with_other_logits_is_named(visit, content):
    wrong = content.replace(b'"epsilon": 1e-06', b'"epsilon": 1.0')
    assert wrong != content
    shown = visit(wrong)
    told = "This browser computes different logits from Python's: the difference is"
    assert text(shown, "warning").startswith(told)
    assert text(shown, "check") == ""
    drop(shown, "noise.png", png())
    assert text(shown, "warning").startswith(told), "the answer of every photo is wrong"
