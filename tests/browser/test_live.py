"""The page with a model inside computes what Python computes."""

import copy
import io

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from PIL import Image
from scipy.special import softmax
from torch import nn

from tests.browser.live import batch_of, bundled, compute, drop, live_page, packed
from tests.core.specs import build
from vitcli.core.inspect.rollout import rollouts
from vitcli.core.spec.slots import SLOTS
from vitcli.runner.data.pictures import decode

pytestmark = pytest.mark.browser

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


def test_probabilities_have_the_temperature_of_the_run(browser, tmp_path):
    sharp = bundled()
    sharp.temperature = 4.0
    (tmp_path / "page.html").write_bytes(live_page(sharp))
    opened = browser.open((tmp_path / "page.html").as_uri())
    opened.wait("document.querySelector('.explorer').dataset.logits !== undefined")
    found = opened.evaluate(
        "[[...explorers[0].scene.shares], [...explorers[0].scene.whole.logits]]"
    )
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
