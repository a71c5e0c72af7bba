"""The text and the page of ``vitcli explain``: every topic, its live numbers, nothing active."""

import re
import shlex
from typing import Any

import pytest
import typer

from tests.runner.explain.made_up import bundled, lessons, make_subject
from vitcli.cli.explain import text
from vitcli.cli.main import app
from vitcli.core.models.build import build_model
from vitcli.core.spec import VitSpec
from vitcli.core.spec.families import ResNet18Spec
from vitcli.runner.errors import ConfigError
from vitcli.runner.experiment.config import load_experiment, parse_sets
from vitcli.runner.explain.lesson import Lesson
from vitcli.runner.explain.lesson import page as page_of
from vitcli.runner.explain.subject import check_model
from vitcli.runner.explain.topics import TOPICS


@pytest.mark.parametrize("name", TOPICS)
def test_text_and_page_show_the_tables_and_commands_that_can_be_typed(name):
    lesson = lessons()[name]
    page, printed = page_of(bundled(), {name: lesson}), text(lesson, bundled())
    assert "_{" not in printed + page
    assert "<nav" not in page
    for table in lesson.tables:
        assert {len(row) for row in table.rows} == {len(table.header)}
        assert all(cell in printed for row in table.rows for cell in row)
    for command, _ in lesson.texts["tries"]:
        program, verb, *words = shlex.split(command)
        assert program == "vitcli"
        found = typer.main.get_command(app).commands[verb]
        if hasattr(found, "commands"):
            found = found.commands[words.pop(0)]
        context = found.make_context(verb, words)
        load_experiment("quickstart", parse_sets(context.params.get("sets")))


def test_the_page_has_every_topic_and_nothing_active():
    page = page_of(bundled(), lessons())
    assert re.findall(r'<section id="(\w+)">', page) == [*TOPICS, "references"]
    assert set(re.findall(r'href="#(\w+)"', page)) == {*TOPICS}
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


SIZES: dict[str, Any] = {"img_size": 16, "in_chans": 3, "num_classes": 3}
TOKENS: dict[str, Any] = {"embed_dim": 16, "depth": 1, "num_heads": 2, "patch_size": 4}


REFUSED = {
    "has no attention": ResNet18Spec(**SIZES),
    "its attention 'performer'": VitSpec(**SIZES, **TOKENS, attention="performer"),
    "no layers": VitSpec(**SIZES, **TOKENS | {"depth": 0}),
    "attn_mask_diagonal": VitSpec(**SIZES, **TOKENS, attn_mask_diagonal=True),
    "one token": VitSpec(**SIZES, **TOKENS | {"patch_size": 16}, pool="mean"),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_models_without_softmax_attention_are_refused_by_name(reason):
    with pytest.raises(ConfigError, match=f"net: .*{reason}") as refused:
        check_model(build_model(REFUSED[reason]), "net")
    assert "\n" not in str(refused.value)
