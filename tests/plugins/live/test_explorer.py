"""The explorer shows the model's numbers; its page is compact and safe, and may hold the model."""

import base64
import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from tests.core.specs import build, changed
from tests.core.trainings import new_task
from tests.explorer_page import attention, parse
from tests.plugins.live.scenes import NAMES, images, scene_of
from vitcli.core.inspect.maps import rollout
from vitcli.core.models.vit import VisionTransformer, build_vit
from vitcli.core.spec import model_spec
from vitcli.plugins.live.explore import Explorer, attention_bytes
from vitcli.plugins.live.page import page, quantise
from vitcli.runner.attn_map.explain import Explainer
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.evaluate.predict import Predictor
from vitcli.runner.evaluate.weights import default_run

ATTACK = "</script><script>document.title='ran'</script><img src=x onerror=alert(1)>\"'{{7*7}}"


@pytest.mark.parametrize(
    ("fields", "prefix"),
    [
        ({}, ("CLS",)),
        ({"reg_tokens": 2}, ("CLS", "register 1", "register 2")),
        ({"pool": "mean"}, ()),
        ({"pool": "seq", "reg_tokens": 1}, ("register 1",)),
        ({"residual": "none"}, ("CLS",)),
    ],
    ids=str,
)
def test_a_scene_is_what_the_model_computes_and_the_page_what_the_scene_is(fields, prefix):
    model = build(**fields)
    check_rows(model)
    batch = images(model)
    scene = scene_of(model, batch)
    shares = dict(scene_of(model, batch, temperature=4.0).classes)
    wanted = (model(batch)[0] / 4).softmax(-1).tolist()
    assert_allclose([shares[name] for name in NAMES], wanted, rtol=1e-5)
    weights = model.attention_weights(batch)
    assert_allclose(scene.attention, torch.cat([weights[0], weights[1]]).detach(), rtol=1e-5)
    for layer in (0, 1):
        below = [weights[i] for i in range(layer + 1)]
        through = rollout(below, residual=fields.get("residual") != "none")
        assert_allclose(scene.rollout[layer], through[0].detach(), rtol=1e-5)
    tokens = model.forward_features(batch).detach()
    read = model.pool(tokens)[0].detach()
    assert_allclose(scene.reading @ tokens[0].numpy(), read, rtol=1e-4)
    shares = model(batch).softmax(-1)[0]
    assert scene.classes[0][0] == NAMES[int(shares.argmax())]
    assert_allclose([p for _, p in scene.classes], sorted(shares.tolist(), reverse=True))
    assert (scene.prefix, scene.grid, scene.layers) == (prefix, (4, 4), (1, 2))


def test_attention_that_is_not_finite_is_refused():
    model = build()
    model.blocks[0].attn.inner.qkv.bias.data.fill_(float("inf"))
    with pytest.raises(InputError, match=r"x\.png: the model's attention .* is not finite"):
        scene_of(model)


def test_rows_keep_small_values_and_large_ones():
    rows = np.random.default_rng(0).dirichlet(np.full(65, 0.05), size=(3, 7)).astype("f4")
    values, maxima = quantise(rows)
    assert values.shape == rows.shape
    assert (maxima == rows.max(-1)).all()
    largest = maxima[..., None].astype(float)
    error = np.abs((values / 255) ** 2 * largest - rows)
    assert (error <= np.sqrt(rows * largest) / 255 + largest / 255**2).all()
    assert error.max() > 0, "the rows are not exact by accident"
    assert quantise(np.array([[0.001, 0.8]], "f4"))[0][0, 0] > 0, "a small share is not nothing"
    assert (quantise(np.zeros((1, 4)))[0] == 0).all()


def test_a_page_shows_what_both_tokens_of_a_student_read():
    task = new_task({"task": {"name": "distil", "kind": "token"}, "model": {"reg_tokens": 1}})
    model = task.encoder(task.module)
    assert isinstance(model, VisionTransformer)
    data = check_rows(model.eval())
    assert data["prefix"] == ["CLS", "distillation"]
    assert data["reader"] == "read-out, half CLS, half the distillation token"
    assert data["readOut"] == 2 + model.num_patches


def check_rows(model: VisionTransformer) -> dict[str, Any]:
    """Check the rows of a page against those of its scene, and return the page's scene."""
    scene = scene_of(model)
    data = parse(page([scene])).data["scenes"][0]
    reads = scene.reading @ scene.attention
    through = scene.reading @ scene.rollout
    kinds = ("attention", scene.attention, reads), ("rollout", scene.rollout, through)
    for name, rows, read in kinds:
        found = attention(data, name)
        step = rows.max() / 255
        assert_allclose(found[..., : rows.shape[-1], :], rows, atol=step)
        assert_allclose(found[..., data["readOut"], :], read, atol=step)
        assert_allclose(found.sum(-1), 1, atol=rows.shape[-1] * step)
    return data


def test_a_vit_of_six_layers_and_eight_heads_is_under_two_megabytes():
    model = build_vit(changed(img_size=(32, 32), embed_dim=32, depth=6, num_heads=8)).eval()
    noise = np.random.default_rng(0).integers(0, 256, (640, 640, 3), dtype=np.uint8)
    scene = scene_of(model, picture=noise, box=(0, 0, 640, 640))
    assert scene.attention.shape == (6, 8, 65, 65)
    assert 300_000 < len(page([scene])) < 2_000_000, "a picture of noise is the largest there is"
    small = len(page([replace(scene, picture=scene.picture[:32, :32])]))
    assert abs(small - attention_bytes(model, 6)) < 100_000


def explainer_of(**fields: Any) -> Explainer:
    """Return an explainer of the bundled run with another model."""
    explainer = Explainer(Predictor(default_run(), "cpu"), by_class=False)
    sizes = {"in_chans": 3, "num_classes": 5, "patch_size": 16, "embed_dim": 16}
    explainer.model = build_vit(model_spec(**(sizes | fields)))
    explainer.heads = tuple(range(fields["num_heads"]))
    explainer.layers = (fields["depth"] - 1,)
    return explainer


def test_a_large_model_is_refused_with_what_to_type():
    Explorer(explainer_of(img_size=(224, 224), depth=12, num_heads=8), all_layers=True)
    large = explainer_of(img_size=(384, 384), depth=24, num_heads=16)
    with pytest.raises(ConfigError, match=r"more than 32 MiB; .* such as --layer -1"):
        Explorer(large, all_layers=True)
    Explorer(large, all_layers=False)


def test_names_stay_text_and_the_policy_allows_one_script_and_one_style_by_their_hash():
    model = build()
    names = [f"{ATTACK}{i}" for i in range(5)]
    scene = scene_of(model, name=ATTACK, class_names=names)
    hostile = parse(page([scene, scene], about=ATTACK))
    harmless = parse(page([scene_of(model)] * 2, about="x"))
    assert [tag for tag, _ in hostile.tags] == [tag for tag, _ in harmless.tags]
    assert hostile.data["scenes"][0]["name"] == ATTACK
    assert hostile.data["scenes"][1]["classes"][0][0].startswith(ATTACK)
    assert hostile.texts["title"] == [f"{ATTACK}: attention"]
    (style,), (data, script) = hostile.texts["style"], hostile.texts["script"]
    sums = [base64.b64encode(hashlib.sha256(t.encode()).digest()).decode() for t in (script, style)]
    assert hostile.policy == (
        f"default-src 'none'; script-src 'sha256-{sums[0]}'; style-src 'sha256-{sums[1]}';"
        " img-src data:; base-uri 'none'; form-action 'none'"
    )
    assert data.lstrip().startswith("{")
    for tag, attributes in hostile.tags:
        assert not {"style", "src", "href"} & attributes.keys(), tag
        assert not [name for name in attributes if name.startswith("on")], tag
