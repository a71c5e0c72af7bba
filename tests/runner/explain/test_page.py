"""The text and the page of ``vitcli explain``: every topic, its live numbers, nothing active."""

import re
import shlex
from typing import Any

import pytest
import torch
import typer

from tests.runner.explain.made_up import bundled, lessons, make_subject
from vitcli.cli.explain import text
from vitcli.cli.main import app
from vitcli.core.inspect.random_tensors import batch_norm, norm_errors, permutation_errors
from vitcli.core.models.build import build_model
from vitcli.core.spec import VitSpec
from vitcli.core.spec.families import ResNet18Spec
from vitcli.runner.errors import ConfigError
from vitcli.runner.explain.lesson import Lesson
from vitcli.runner.explain.lesson import page as page_of
from vitcli.runner.explain.subject import check_model
from vitcli.runner.explain.topics import TOPICS


def live_numbers() -> dict[str, list[str]]:
    """Return numbers that each topic must show for the bundled model, as they are printed."""
    subject = bundled()
    layer = subject.layers[-1]
    scores = layer.query @ layer.key.mT
    row = layer.weights[0, :, subject.query]
    entropy = -(row * row.log()).sum(-1)
    largest = row[entropy.argmin()].max().item()
    received = layer.weights[0].mean(0).sum(0)
    with torch.no_grad():
        share = subject.model(subject.batch).softmax(-1).max().item()
    error = permutation_errors()["output"]
    return {
        "patches": ["(3, 32, 32)", "48 numbers", "4,096"],
        "attention": ["(1, 4, 64, 32)", f"{scores.min().item():.3f}", f"{scores.max().item():.3f}"],
        "scale": [f"{scores.var().item():.2f}", "ln 64 = 4.16"],
        "average": ["(0.2, 0.3, 0.5)", f"{largest:.3f}"],
        "graph": ["4,096 edges", "65,536", f"{received.max().item():.2f}", "100 %"],
        "permutation": [f"{error:.2f}", f"{100 * share:.1f} %"],
        "norms": [f"{norm_errors(batch_norm)['alone']:.2f}", "256 numbers", "2,304"],
    }


@pytest.mark.parametrize("name", TOPICS)
def test_text_and_page_show_the_live_numbers(name):
    lesson = lessons()[name]
    page = page_of(bundled(), {name: lesson})
    printed = text(lesson, bundled())
    for number in live_numbers()[name]:
        assert number in printed
        assert number in page
    for table in lesson.tables:
        assert {len(row) for row in table.rows} == {len(table.columns)}
        for cell in (cell for row in table.rows for cell in row):
            assert cell in printed
    assert lesson.texts["title"] in printed
    assert "_{" not in printed + page


def test_the_page_has_every_topic_and_nothing_active():
    page = page_of(bundled(), lessons())
    assert re.findall(r'<section id="(\w+)">', page) == [*TOPICS, "references"]
    assert set(re.findall(r'href="#(\w+)"', page)) == {*TOPICS, "tip"} - {"tip"}
    assert "default-src 'none'; style-src 'unsafe-inline'; img-src data:" in page
    assert not re.search(r"<script|https?://|@import|javascript:", page)
    assert set(re.findall(r'(?:src|href)="(.[^"]{0,13})', page)) <= {
        "data:image/png",
        *(f"#{name}"[:14] for name in TOPICS),
    }
    identifiers = re.findall(r' id="([^"]+)"', page)
    assert len(identifiers) == len(set(identifiers))
    for kind in ("section", "table", "figure", "svg"):
        assert page.count(f"<{kind}") == page.count(f"</{kind}>") > 0


def test_the_page_of_one_topic_has_its_title_and_no_list():
    page = page_of(bundled(), {"scale": lessons()["scale"]})
    assert "<h1>Scale: why the scores are divided by √d</h1>" in page
    assert "<nav" not in page


def test_names_are_escaped():
    attack = '"><script>alert(1)</script>'
    subject = make_subject(attack)
    page = page_of(subject, {"scale": lessons()["scale"]})
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def test_formulas_have_scripts_and_stay_safe():
    lesson = Lesson(texts={"formula": "a_{ij} < K^{T}\nx"})
    assert lesson.formula_html == "a<sub>ij</sub> &lt; K<sup>T</sup><br>x"
    assert lesson.formula_text == "a_ij < K^T\nx"


@pytest.mark.parametrize("name", TOPICS)
def test_the_commands_to_try_can_be_typed(name):
    for command, shows in lessons()[name].texts["tries"]:
        program, verb, *words = shlex.split(command)
        assert program == "vitcli"
        assert shows
        group = typer.main.get_command(app)
        found = group.commands[verb]
        if hasattr(found, "commands"):
            found = found.commands[words.pop(0)]
        context = found.make_context(verb, words)
        for change in context.params.get("sets") or ():
            check_change(change)


def check_change(change: str) -> None:
    from vitcli.runner.experiment.config import load_experiment, parse_sets

    load_experiment("quickstart", parse_sets([change]))


SIZES: dict[str, Any] = {"img_size": 16, "in_chans": 3, "num_classes": 3}
TOKENS: dict[str, Any] = {"embed_dim": 16, "depth": 1, "num_heads": 2, "patch_size": 4}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (ResNet18Spec(**SIZES), "net: family 'resnet18' has no attention; name a Vision"),
        (
            VitSpec(**SIZES, **TOKENS, attention="performer"),
            "net: its attention 'performer' is softmax by positive",
        ),
        (VitSpec(**SIZES, **TOKENS | {"depth": 0}), "net: the model has no layers"),
        (
            VitSpec(**SIZES, **TOKENS, attn_mask_diagonal=True),
            "net: attn_mask_diagonal hides each token from itself",
        ),
        (
            VitSpec(**SIZES, **TOKENS | {"patch_size": 16}, pool="mean"),
            "net: the model has one token",
        ),
    ],
    ids=["resnet", "performer", "depth 0", "diagonal", "one token"],
)
def test_models_without_softmax_attention_are_refused_by_name(spec, message):
    with pytest.raises(ConfigError, match=message) as refused:
        check_model(build_model(spec), "net")
    assert "--run cifar10-pocket" in str(refused.value)
    assert "\n" not in str(refused.value)
