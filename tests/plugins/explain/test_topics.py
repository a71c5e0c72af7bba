"""Numbers, text and page of ``vitcli explain``, against numpy or a loop."""

import math
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import typer
from numpy.testing import assert_allclose
from PIL import Image
from scipy.special import entr, softmax

from tests.cli.commands import printed, vitcli
from tests.plugins.explain.made_up import SIZES, SMALL, bundled, lessons, make_subject
from vitcli.cli.main import app
from vitcli.core.data.augment import normalize
from vitcli.core.models.image_model import build_model
from vitcli.core.nn.patch_embed import patchify
from vitcli.core.spec import VitSpec
from vitcli.core.spec.families import ResNet18Spec
from vitcli.plugins.explain import shown, subject
from vitcli.plugins.explain.command import text
from vitcli.plugins.explain.lesson import Lesson, lesson_of
from vitcli.plugins.explain.lesson import page as page_of
from vitcli.plugins.explain.random_tensors import normal
from vitcli.plugins.explain.subject import check_model
from vitcli.plugins.explain.topics import TOPICS
from vitcli.runner.errors import ConfigError
from vitcli.runner.evaluate.predict import Predictor
from vitcli.runner.evaluate.weights import DEFAULT_MODEL
from vitcli.runner.experiment.config import load_experiment, parse_sets
from vitcli.runner.run.folder import BUNDLED, RunDir

SUBJECTS = {
    "bundled": bundled,
    "cls": lambda: make_subject(pool="cls", pos_embed="learned", reg_tokens=1),
    "relative, clamped": lambda: make_subject(pos_embed="relative", attn_clamp=True),
}


@pytest.fixture(params=SUBJECTS)
def shown_on(request) -> subject.Subject:
    return SUBJECTS[request.param]()


def numpy_layer(subject, index: int) -> dict[str, np.ndarray]:
    """Attention of a layer without bias, from the layer's input and the weights of the model."""
    layer = subject.layers[index]
    inner = layer.attention
    x = layer.tokens[0].double().numpy()
    qkv = x @ inner.qkv.weight.detach().double().numpy().T
    qkv = qkv + inner.qkv.bias.detach().double().numpy()
    heads = subject.sizes()["heads"]
    q, k, v = (part.reshape(len(x), heads, -1).swapaxes(0, 1) for part in np.split(qkv, 3, axis=1))
    scores = q @ k.swapaxes(1, 2)
    scaled = scores / math.sqrt(q.shape[-1])
    bias = inner.position.bias()
    shown = scaled if bias is None else scaled + bias[0].detach().double().numpy()
    weights = np.exp(shown) / np.exp(shown).sum(-1, keepdims=True)
    mixed = weights @ v
    joined = mixed.swapaxes(0, 1).reshape(len(x), -1)
    out = joined @ inner.proj.weight.detach().double().numpy().T
    out = out + inner.proj.bias.detach().double().numpy()
    found = {"x": x, "q": q, "k": k, "v": v, "scores": scores, "scaled": scaled}
    found |= {} if bias is None else {"biased": shown}
    return found | {"weights": weights, "mixed": mixed, "joined": joined, "out": out}


def test_attention_shows_each_step_of_the_layer_and_of_cross_attention(shown_on):
    numbers = shown.explain_attention(shown_on).numbers
    expected = numpy_layer(shown_on, -1)
    assert len(numbers["steps"]) == len(expected)
    for step, values in zip(numbers["steps"].values(), expected.values(), strict=True):
        assert step["shape"] == [1, *values.shape]
        assert step["smallest"] == pytest.approx(values.min(), abs=1e-4)
        assert step["largest"] == pytest.approx(values.max(), abs=1e-4)
        assert step["deviation"] == pytest.approx(values.std(ddof=1), abs=1e-4)
    assert numbers["row_sum_error"] < 1e-5
    assert numbers["smallest_weight"] == pytest.approx(expected["weights"].min(), rel=1e-3)
    assert numbers["cross_error"] < 1e-5
    _, output = shown.cross_attention(shown_on.layers[-1])  # of the first few queries
    assert_allclose(output[0].detach(), expected["out"][: shown.NUM_CROSS], atol=1e-4)


def test_scale_shows_variances_and_entropies_of_the_layers(shown_on):
    rows = [shown.layer_scores(layer) for layer in shown_on.layers]
    for index, row in enumerate(rows):
        parts = numpy_layer(shown_on, index)
        variances = parts["q"].var(ddof=1), parts["k"].var(ddof=1)
        assert (row["query"], row["key"]) == pytest.approx(variances, rel=1e-3)
        head_width = shown_on.sizes()["head_width"]
        predicted = head_width * math.prod(variances)
        assert row["predicted"] == pytest.approx(predicted, rel=1e-3)
        assert row["before"] == pytest.approx(parts["scores"].var(ddof=1), rel=1e-3)
        assert row["after"] == pytest.approx(row["before"] / head_width, rel=1e-3)
        bias = parts.get("biased", parts["scaled"]) - parts["scaled"]
        for key, scores in (("entropy", "scaled"), ("unscaled_entropy", "scores")):
            shares = softmax(parts[scores] + bias, axis=-1)
            assert row[key] == pytest.approx(entr(shares).sum(-1).mean(), abs=1e-3)


def test_average_shows_the_largest_weights_of_the_sharpest_head(shown_on):
    numbers = shown.explain_average(shown_on).numbers
    rows = numpy_layer(shown_on, -1)["weights"][:, shown_on.query]
    entropies = -(rows * np.log(rows)).sum(-1)
    row = rows[entropies.argmin()]
    assert numbers["head"] == entropies.argmin() + 1
    order = np.argsort(-row)[:5]
    assert [each["token"] for each in numbers["largest"]] == order.tolist()
    assert_allclose([each["weight"] for each in numbers["largest"]], row[order], atol=1e-5)
    assert numbers["rest"] == pytest.approx(1 - row[order].sum(), abs=1e-5)
    assert numbers["difference"] < 1e-5


def test_graph_shows_degrees_and_the_strongest_edges(shown_on):
    numbers, parts = shown.explain_graph(shown_on).numbers, numpy_layer(shown_on, -1)
    weights, size = parts["weights"].mean(0), shown_on.sizes()["tokens"]
    assert (numbers["nodes"], numbers["edges"]) == (size, size**2)
    assert numbers["graphs"] == len(shown_on.layers) * shown_on.sizes()["heads"]
    assert numbers["all_edges"] == numbers["graphs"] * size**2
    received = weights.sum(0)
    assert_allclose(numbers["received"], received, atol=1e-4)
    assert numbers["mean_received"] == pytest.approx(1)
    assert numbers["out_weight"] == pytest.approx(1)
    assert numbers["least_received"] == pytest.approx(received.min(), abs=1e-4)
    assert numbers["most_received"] == pytest.approx(received.max(), abs=1e-4)
    assert numbers["most_received_by"] == shown_on.token_name(int(received.argmax()))
    tenth = np.sort(received)[::-1][: numbers["num_tenth"]]
    assert numbers["share_of_tenth"] == pytest.approx(tenth.sum() / size, abs=1e-4)
    assert numbers["self_weight"] == pytest.approx(np.diag(weights).mean(), abs=1e-5)
    off = weights - np.diag(np.diag(weights)) * 2
    order = np.argsort(-off, axis=None)[: len(numbers["strongest"])]
    expected = [divmod(int(place), size) for place in order]
    assert [(edge["query"], edge["key"]) for edge in numbers["strongest"]] == expected
    assert_allclose([edge["weight"] for edge in numbers["strongest"]], off.flat[order], atol=1e-5)
    assert numbers["update_error"] < 1e-5


def test_norms_show_the_errors_of_both_kinds():
    numbers = shown.explain_norms(make_subject()).numbers
    images = (1 + normal("norm", 32, 16, 8) + normal("levels", 32, 1, 1)).numpy()

    def batch(x):
        flat = x.reshape(-1, 8)
        return (x - flat.mean(0)) / np.sqrt(flat.var(0) + 1e-5)

    whole = batch(images)[0]
    padded = batch(np.concatenate([images, np.zeros_like(images)], 1))[0, :16]
    found = {"alone": batch(images[:1])[0], "padded": padded, "divided": batch(images[:16])[0]}
    for name, values in found.items():
        expected = np.sqrt(((values - whole) ** 2).mean())
        assert numbers["batch"][name] == pytest.approx(expected, rel=1e-6)
        assert numbers["batch"][name] > 0.01
        assert numbers["layer"][name] == 0


@pytest.mark.parametrize("positions", ["learned", "sincos2d", "rope2d", "relative", "none"])
def test_permuting_patches_changes_the_logits_only_with_positions(positions):
    subject = make_subject(pos_embed=positions)
    answers = shown.model_answers(subject)
    changes = [answers[name]["change"] for name in ("with positions", "without positions")]
    assert (changes[0] > 1e-2) is (positions != "none")
    assert changes[1] < 1e-4


def test_the_permuted_tokens_are_those_of_the_permuted_picture():
    subject = make_subject(pos_embed="learned")
    moved = shown.shuffled_pixels(subject)
    assert sorted(moved.flatten().tolist()) == sorted(subject.pixels.flatten().tolist())
    data = subject.predictor.spec.data
    batch = normalize(moved[None], torch.tensor(data.mean), torch.tensor(data.std))
    with torch.no_grad():
        plain, changed = subject.model(subject.batch)[0], subject.model(batch)[0]
    row = shown.model_answers(subject)["with positions"]
    assert row["change"] == pytest.approx((plain - changed).abs().max().item(), abs=1e-4)
    assert row["range"] == pytest.approx((plain.max() - plain.min()).item(), abs=1e-4)
    share = F.softmax(plain, -1).max().item()
    assert row["answers"][0] == f"{'abc'[int(plain.argmax())]}, {100 * share:.1f} %"


@pytest.mark.parametrize(
    ("patch_embed", "pre_norm"),
    [("linear", False), ("conv", False), ("linear", True), ("conv_tokenizer", False)],
)
def test_flatten_and_multiply_is_the_strided_convolution(patch_embed, pre_norm):
    is_own = patch_embed in ("linear", "conv") and not pre_norm
    subject = make_subject(patch_embed=patch_embed, patch_pre_norm=pre_norm)
    numbers = shown.explain_patches(subject).numbers
    assert numbers["is_own"] is is_own
    assert numbers["convolution_error"] < 1e-4
    weight, bias, _ = shown.projection(subject)
    assert weight.shape == (16, 48)
    lesson = lesson_of("patches", subject)
    assert ("in a plain ViT" in lesson.tables[0].caption) is not is_own
    assert ("with patch_embed" in lesson.findings[0]) is not is_own
    if is_own:
        with torch.no_grad():
            tokens = subject.model.patch_embed(subject.batch)
            flat = F.linear(patchify(subject.batch, 4), weight, bias)
        assert_allclose(flat, tokens, atol=1e-4)


@pytest.mark.parametrize("name", TOPICS)
def test_text_and_page_show_the_tables_and_commands_that_can_be_typed(name):
    lesson = lessons()[name]
    printed = text(lesson, bundled())
    for table in lesson.tables:
        assert {len(row) for row in table.rows} == {len(table.columns)}
        assert all(cell in printed for row in table.rows for cell in row)
    for command, _ in lesson.texts["tries"]:
        program, verb, *words = shlex.split(command)
        assert program == "vitcli"
        found = typer.main.get_command(app).commands[verb]
        if hasattr(found, "commands"):
            found = found.commands[words.pop(0)]
        context = found.make_context(verb, words)
        load_experiment("quickstart", parse_sets(context.params.get("sets")))


def test_the_page_has_every_topic_and_nothing_active_and_formulas_stay_safe():
    page = page_of(make_subject('"><script>alert(1)</script>'), lessons())
    assert "&lt;script&gt;" in page
    assert re.findall(r'<section id="(\w+)">', page) == [*TOPICS, "references"]
    assert set(re.findall(r'href="#(\w+)"', page)) == {*TOPICS}
    assert "default-src 'none'; style-src 'unsafe-inline'; img-src data:" in page
    assert not re.search(r"<script|https?://|@import|javascript:", page)
    lesson = Lesson(texts={"formula": "a_{ij} < K^{T}\nx"})
    assert lesson.formula_html == "a<sub>ij</sub> &lt; K<sup>T</sup><br>x"
    assert lesson.formula_text == "a_ij < K^T\nx"


REFUSED = {
    "family": ResNet18Spec(**SIZES),
    "attention": VitSpec(**SMALL, attention="performer"),
    "no layers": VitSpec(**SMALL | {"depth": 0}),
    "diagonal": VitSpec(**SMALL, attn_mask_diagonal=True),
    "one token": VitSpec(**SMALL | {"patch_size": 16}, pool="mean"),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_models_without_softmax_attention_are_refused(reason):
    with pytest.raises(ConfigError, match="net: only softmax attention"):
        check_model(build_model(REFUSED[reason]), "net")


def test_a_picture_is_fitted_as_in_the_training(tmp_path, monkeypatch):
    def padding(run: RunDir, device: str, **options: Any) -> Predictor:
        predictor = Predictor(run, device, **options)
        data = predictor.spec.data.replace(name="imagefolder:x", fit="pad")
        predictor.spec = predictor.spec.replace(data=data)
        return predictor

    monkeypatch.setattr(subject, "Predictor", padding)
    Image.new("RGB", (64, 32), "white").save(tmp_path / "wide.png")
    seen = subject.load_subject(RunDir(BUNDLED / DEFAULT_MODEL), tmp_path / "wide.png").pixels[0]
    assert (seen.amax(1) > 0).sum() == 16, "bars above and below"


def test_the_page_is_written(here):
    assert printed("explain", "average", "-o", "one.html") == "one.html\n"
    assert printed("explain", "average", "--format", "html") == "explain-average.html\n"
    assert Path("explain-average.html").read_bytes() == Path("one.html").read_bytes()
    assert vitcli("explain", "average", "-o", "one.txt")[0] == 2
