"""The explorer of `attn-map --format html` and of `visualize`, and the page with the model."""

from pathlib import Path

import pytest

from tests.cli.commands import document, said, save_picture
from tests.explorer_page import parse


def explorer(*words: object) -> dict:
    said(0, "attn-map", *words, "--format", "html", "-o", "x.html")
    return parse(Path("x.html").read_bytes()).data


@pytest.mark.parametrize(
    ("words", "layers"), [([], [1, 2]), (["--layer", "2,1"], [2, 1])], ids=["all", "named"]
)
def test_the_explorer_has_the_requested_layers(mapped_run, words, layers):
    data = explorer(mapped_run, save_picture("x.png", (20, 12)), *words)
    assert data["scenes"][0]["layers"] == layers
    assert data["scenes"][0]["box"] == pytest.approx([0.2, 0, 0.6, 1])


def test_every_picture_gets_a_page(mapped_run):
    paths = [save_picture(name, (10, 10)) for name in ("a.png", "b.png")]
    found = document("attn-map", mapped_run, *paths, "--format", "html")
    files = [row["file"] for row in found["pictures"]]
    assert files == found["files"] == ["a-explorer.html", "b-explorer.html"]
    data = parse(Path(files[1]).read_bytes()).data
    assert [scene["name"] for scene in data["scenes"]] == ["b.png"]


def test_runs_share_the_script_of_a_page_and_each_has_its_pictures(copy_of_run):
    runs = [copy_of_run(Path(name), {"train.epochs": 1}) for name in ("one", "two")]
    said(0, "visualize", *runs, "--what", "explorer")
    assert parse(Path("figures/one/explorer.html").read_bytes()).data["scenes"]
    page = Path("figures/index.html").read_text()
    assert (page.count("<script>"), page.count("script-src 'sha256-")) == (1, 1)
    first, second = page.split('class="explorer"')[1:]
    assert first.count("data:image/png;base64,") == second.count("data:image/png;base64,") == 2
