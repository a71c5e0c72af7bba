"""The explorer's page in a real browser: it is safe, loads alone and fits every screen."""

from pathlib import Path

import pytest

from tests.browser.explorer import make_model, scene_of, state, text
from vitcli.runner.visualize.explorer.page import fragment, page

pytestmark = pytest.mark.browser

RUN = "document.title='ran'"
ATTACK = f'</script><script>{RUN}</script><img src=x onerror="{RUN}">'


def test_the_page_loads_without_console_messages_or_requests(visit, scene):
    for options in ({}, {"dark": True}, {"size": (390, 844), "phone": True}):
        shown = visit(page([scene]), **options)
        assert shown.console_messages() == []
        assert shown.requests() == []
        found = state(shown)
        assert (found["layer"], found["head"], found["query"]) == ("3", "mean", "0")
        wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert shown.evaluate(wide) <= 0


def test_the_browser_reports_errors_and_requests(visit, scene):
    shown = visit(page([scene]))
    shown.evaluate("setTimeout(() => { undefinedName; })")
    shown.evaluate("new Image().src = 'https://example.org/x.png'")
    shown.wait("true")
    assert any("undefinedName" in str(message) for message in shown.console_messages())
    assert any("Content Security Policy" in str(message) for message in shown.console_messages())


def test_hostile_names_stay_inert(visit):
    names = [f"{ATTACK}{i}" for i in range(5)]
    scene = scene_of(make_model(), name=ATTACK, class_names=names)
    shown = visit(page([scene, scene], about=ATTACK))
    assert text(shown, "name") == ATTACK
    assert text(shown, "about") == ATTACK
    assert text(shown, "prediction strong").startswith(ATTACK)
    assert shown.evaluate("document.title") == f"{ATTACK}: attention"
    assert shown.evaluate("document.scripts.length") == 2
    assert shown.console_messages() == []
    assert shown.requests() == []


def test_the_policy_stops_a_script_that_got_in(visit, scene):
    content = page([scene]).replace(b"<main>", b"<main>" + ATTACK.encode())
    shown = visit(content)
    assert shown.evaluate("document.title") != "ran"
    assert any("Content Security Policy" in str(message) for message in shown.console_messages())


def test_a_fragment_works_inside_another_page_and_handles_keys_only_with_the_focus(visit, scene):
    found = fragment([scene])
    shown = visit(
        '<!DOCTYPE html><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="'
        f"default-src 'none'; script-src {found.script_hash}; style-src {found.style_hash};"
        f' img-src data:"><style>{found.style}</style><h1>Another page</h1>{found.markup}'
        f"<script>{found.script}</script>".encode()
    )
    assert shown.console_messages() == []
    shown.press("[")
    assert state(shown)["layer"] == "3"
    shown.evaluate("document.querySelector('.stage').focus()")
    shown.press("[")
    assert state(shown)["layer"] == "2"


def test_screens_of_all_sizes_do_not_scroll_sideways(visit):
    names = [f"northern_flying_squirrel_with_acorn_{i}_{'x' * 40}" for i in range(100)]
    model = make_model(num_heads=12, depth=4, embed_dim=24, num_classes=100)
    scene = scene_of(model, class_names=names)
    shown = visit(page([scene] * 12, about="A long line. " * 20))
    for width in (320, 360, 390, 640, 1000, 1024, 1280, 1920):
        shown.resize(width, 800)
        state(shown)
        assert shown.overflow() <= 0, width
    shown.print_on(718)
    state(shown)
    assert shown.overflow() <= 0


def test_a_screenshot_is_a_picture(visit, scene, tmp_path):
    shown = visit(page([scene]), size=(400, 300))
    shown.screenshot(Path(tmp_path / "x.png"))
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("depth", "above"), [(3, "13.5rem"), (12, "13.5rem"), (12, "26rem")])
def test_the_titles_of_the_columns_do_not_overlap(visit, depth, above):
    """Many layers make narrow cells; the page with a model leaves them less height."""
    shown = visit(page([scene_of(make_model(depth=depth))]), size=(1280, 800))
    shown.evaluate(f"document.querySelector('.halves').style.setProperty('--above', {above!r})")
    state(shown)
    mean, rollout = shown.evaluate(
        "[...document.querySelectorAll('.maps .word')].map(word => {"
        " const range = document.createRange(); range.selectNodeContents(word);"
        " const box = range.getBoundingClientRect(); return [box.left, box.right, box.height]; })"
    )
    assert mean[1] + 2 <= rollout[0], (mean, rollout)
    is_turned = rollout[2] > rollout[1] - rollout[0]
    assert is_turned == (depth == 12)
