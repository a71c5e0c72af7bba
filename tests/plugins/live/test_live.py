"""The page with a model inside computes what Python computes, and serves its user."""

import base64
import copy
import io
import json
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from PIL import Image
from scipy.special import softmax
from torch import nn

from tests.browser.chromium import Page
from tests.core.specs import build
from tests.plugins.live.scenes import SHIP, bundled, live_page, middle, state, text, values
from vitcli.core.data.augment import normalize
from vitcli.core.inspect.maps import rollouts
from vitcli.core.models.vit import VisionTransformer
from vitcli.core.spec.slots import SLOTS
from vitcli.plugins.live.packing import pack_model
from vitcli.runner.attn_map.explain import Explainer
from vitcli.runner.data.pictures import decode

pytestmark = pytest.mark.browser

MEAN, STD = (0.5, 0.4, 0.3), (0.25, 0.2, 0.3)
RUN = """(() => {{
  const network = {network};
  const pixels = bytesOf("{pixels}");
  const removed = {{heads: new Set({heads}), patches: new Set({patches})}};
  const found = network.run(pixels, removed);
  const heads = [...Array(network.heads).keys()];
  const isKept = (layer, head) => !removed.heads.has(`${{layer}} ${{head}}`);
  const kept = network.blocks.map((_, layer) => heads.filter((head) => isKept(layer, head)));
  const through = rollouts(found.attention, network, kept);
  return {{logits: [...found.logits], lens: found.lens.map(each => [...each]),
    attention: [...found.attention], reading: [...found.reading], rollout: [...through]}};
}})()"""
INSIDE = "explorers[0].network"
ROWS = [(slot, row) for slot in SLOTS for row in SLOTS[slot] if slot not in ("init", "attention")]
OTHERS = {
    "no biases": {"qkv_bias": False, "proj_bias": False, "patch_bias": False},
    "no projection": {"attn_proj": False},
    "layer scale": {"layer_scale_init": 0.3},
    "norms of patches": {"patch_pre_norm": True, "patch_post_norm": True},
    "prefix with positions": {"reg_tokens": 2, "pos_embed_prefix": True, "pos_embed": "learned"},
    "rope and registers": {"reg_tokens": 1, "pos_embed": "rope2d"},
    "relative and registers": {"reg_tokens": 1, "pos_embed": "relative"},
    "seq and registers": {"reg_tokens": 2, "pool": "seq"},
    "grey, not square": {"in_chans": 1, "img_size": (8, 24), "pos_embed": "sincos2d"},
    "post norm, final norm": {"norm_position": "post", "final_norm": True},
    "three classes": {"num_classes": 3},
}
REFUSED = {("patch_embed", "shifted"), ("ffn", "depthwise")}
"""Rows that the page does not compute; tests/runner/visualize/test_live.py shows their refusal."""
CASES = {f"{slot} {row}": {slot: row} for slot, row in ROWS if (slot, row) not in REFUSED} | OTHERS


def packed(model: VisionTransformer) -> str:
    channels = model.image_shape[0]
    steps, weights = pack_model(model, MEAN[:channels], STD[:channels])
    texts = [base64.b64encode(part).decode() for part in weights]
    return f"new Network({json.dumps({'model': steps, 'weights': texts})})"


def compute(
    shown: Page,
    pixels: np.ndarray,
    network: str = INSIDE,
    *,
    heads: tuple[str, ...] = (),
    patches: tuple[int, ...] = (),
) -> dict[str, np.ndarray]:
    """Run a network in the page on pixels (H, W, C); heads are named "layer head", from 0."""
    code = RUN.format(
        network=network,
        pixels=base64.b64encode(np.ascontiguousarray(pixels).tobytes()).decode(),
        heads=json.dumps(heads),
        patches=json.dumps(patches),
    )
    return {name: np.array(values) for name, values in shown.evaluate(code).items()}


def batch_of(pixels: np.ndarray, mean: Any = MEAN, std: Any = STD) -> torch.Tensor:
    channels = pixels.shape[-1]
    images = torch.from_numpy(pixels).permute(2, 0, 1)[None]
    return normalize(images, torch.tensor(mean[:channels]), torch.tensor(std[:channels]))


def logits(shown: Page) -> np.ndarray:
    return np.array(json.loads(state(shown)["logits"]))


def drop(shown: Page, name: str, content: bytes, kind: str = "image/png") -> None:
    shown.evaluate(
        f"""(async () => {{
  const data = new DataTransfer();
  data.items.add(new File([bytesOf("{base64.b64encode(content).decode()}")], {json.dumps(name)},
    {{type: "{kind}"}}));
  const options = {{dataTransfer: data, bubbles: true, cancelable: true}};
  document.querySelector(".stage").dispatchEvent(new DragEvent("drop", options));
}})()"""
    )
    named = f"{json.dumps(name)}"
    shown.wait(
        f"document.querySelector('.name').textContent === {named}"
        f" || document.querySelector('.complaint').textContent.startsWith({named})"
    )


@pytest.fixture(scope="module")
def predictor():
    return bundled()


@pytest.fixture(scope="module")
def shown(browser, tmp_path_factory, predictor):
    file = tmp_path_factory.mktemp("live") / "page.html"
    file.write_bytes(live_page(predictor))
    opened = browser.open(file.as_uri())
    opened.wait("document.querySelector('.explorer').dataset.logits !== undefined")
    return opened


def pixels_of(model) -> np.ndarray:
    channels, height, width = model.image_shape
    return np.random.default_rng(3).integers(0, 256, (height, width, channels), dtype=np.uint8)


def noisy(model):
    generator = torch.Generator().manual_seed(0)
    for part in model.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            part.running_mean.normal_(generator=generator).mul_(0.3)
            part.running_var.uniform_(0.5, 2, generator=generator)
    return model.float()


@pytest.mark.parametrize("fields", CASES.values(), ids=CASES.keys())
def test_every_row_of_every_slot_gives_the_numbers_of_python(shown, fields):
    torch.manual_seed(0)
    model = noisy(build(**fields))
    pixels = pixels_of(model)
    found = compute(shown, pixels, packed(model))
    with torch.no_grad():
        expected, weights = model.forward_with_weights(batch_of(pixels))
        through = list(rollouts(weights.values(), residual=model.spec.has_residual))
    largest = max(1.0, expected.abs().max().item())
    assert_allclose(found["logits"], expected[0], atol=1e-4 * largest)
    shape = (len(model.blocks), *weights[0].shape[1:])
    attention = torch.cat(list(weights.values()))
    assert_allclose(found["attention"].reshape(shape), attention, atol=1e-4)
    assert_allclose(found["rollout"].reshape(-1), torch.stack(through).flatten(), atol=1e-4)
    assert_allclose(found["lens"][-1], found["logits"])
    assert found["reading"].sum() == pytest.approx(1)
    assert not np.allclose(found["logits"], expected[0].roll(1), atol=1e-2), "any numbers would do"


def test_scores_above_the_clamp_get_equal_weights(shown):
    model = build(attn_clamp=True, depth=1, pool="mean").float()
    with torch.no_grad():
        model.blocks[0].attn.inner.qkv.bias[:48] = 300  # all scores are above 200,000
    found = compute(shown, pixels_of(model), packed(model))
    assert_allclose(found["attention"], 1 / 16, rtol=1e-6)


def test_a_removed_head_a_removed_patch_and_the_lens_are_those_of_python(shown, predictor):
    model, data = copy.deepcopy(predictor.model), predictor.spec.data
    pixels = pixels_of(model)
    batch = batch_of(pixels, data.mean, data.std)
    found = compute(shown, pixels, heads=("1 2",), patches=(0, 13))
    batch[..., :4, :4] = 0
    batch[..., 4:8, 20:24] = 0
    size = model.spec.head_dim
    with torch.no_grad():
        model.blocks[1].attn.inner.proj.weight[:, 2 * size : 3 * size] = 0
        tokens = model.embed(batch)
        lens = []
        for block in model.blocks:
            tokens = block(tokens)
            lens.append(model.forward_head(model.last_norm(tokens))[0])
        weights = model.attention_weights(batch)
    assert_allclose(found["lens"], torch.stack(lens), atol=1e-3)
    assert_allclose(found["logits"], lens[-1], atol=1e-3)
    assert not np.allclose(compute(shown, pixels)["logits"], found["logits"], atol=1e-2)
    kept = weights[1][:, [0, 1, 3]]  # a removed head passes nothing on
    through = list(rollouts([weights[0], kept, *(weights[i] for i in range(2, len(weights)))]))
    assert_allclose(found["rollout"], torch.cat(through).flatten(), atol=1e-4)
    without = compute(shown, pixels, heads=("0 0", "0 1", "0 2", "0 3"))["rollout"]
    assert_allclose(without[: 64 * 64], np.eye(64).ravel(), err_msg="the residual passes all on")


def test_probabilities_have_the_temperature_of_the_run(visit):
    sharp = bundled()
    sharp.temperature = 4.0
    numbers = "[[...explorers[0].scene.shares], [...explorers[0].scene.whole.logits]]"
    found = visit(live_page(sharp)).evaluate(numbers)
    assert_allclose(found[0], softmax(np.array(found[1]) / 4), atol=1e-6)


@pytest.mark.parametrize(
    ("size", "kind", "mode"),
    [
        *((size, "png", "RGB") for size in ((32, 32), (20, 90), (301, 208), (1000, 70), (7, 5))),
        *(((45, 33), "png", mode) for mode in ("RGBA", "LA", "P")),
        ((45, 33), "webp", "RGB"),
    ],
)
def test_a_dropped_picture_has_the_pixels_of_python(shown, size, kind, mode):
    rng = np.random.default_rng(5)
    picture = Image.fromarray(rng.integers(0, 256, (*size, 4), dtype=np.uint8), "RGBA")
    buffer = io.BytesIO()
    picture.convert(mode).save(buffer, kind, **({"lossless": True} if kind == "webp" else {}))
    name = f"{size[0]}x{size[1]}-{mode}.{kind}"
    drop(shown, name, buffer.getvalue(), f"image/{kind}")
    found = np.array(shown.evaluate("[...explorers[0].scene.pixels]")).reshape(32, 32, 3)
    expected = decode(buffer.getvalue(), name, (32, 32), 3).permute(1, 2, 0).numpy()
    assert np.abs(found - expected.astype(int)).max() <= 1
    assert (found == expected).mean() > 0.99


# What its user does


LAST = 4


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


def test_heads_and_patches_are_removed_and_restored_by_keys_and_by_mouse(visit, content):
    shown = visit(content, size=(1280, 1200))
    whole = logits(shown)
    shown.press("X")
    one = logits(shown)
    for key in ("ArrowUp", "x"):
        shown.press(key)
    assert np.abs(one - whole).max() > 1e-3
    assert np.abs(logits(shown) - one).max() > 1e-3
    removed = {"removedHeads": [f"{LAST} 1"], "removedPatches": [8 * 4 + 4]}
    assert {name: json.loads(state(shown)[name]) for name in removed} == removed
    labels = "[...document.querySelectorAll('.map')].map(map => map.getAttribute('aria-label'))"
    marked = [label for label in shown.evaluate(labels) if label.endswith("removed")]
    assert marked == [f"layer {LAST + 1}, head 2, removed"]
    shown.press("u")
    assert (logits(shown) == whole).all()
    shown.press("Escape")
    shown.click(*middle(shown, ".remove-patches"))
    x, y = middle(shown, ".stage")  # the corner of four patches
    shown.click(x + 5, y + 5)
    assert state(shown)["pinned"] == "false"
    shown.click(*middle(shown, ".remove-head"))
    assert {name: json.loads(state(shown)[name]) for name in removed} == removed
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
