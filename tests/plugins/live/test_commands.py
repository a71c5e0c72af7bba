"""The explorer of `attn-map --format html` and of `visualize`, and the page with the model."""

from pathlib import Path

import pytest

from tests.cli.commands import document, said, save_picture
from tests.explorer_page import parse


def explorer(*words: object) -> dict:
    said(0, "attn-map", *words, "--format", "html", "-o", "x.html")
    return parse(Path("x.html").read_bytes()).data


OPENING = {"layer": 2, "head": None, "rollout": False, "query": None}


@pytest.mark.parametrize(
    ("words", "changes", "layers"),
    [
        ([], {}, [1, 2]),
        (["--method", "rollout"], {"rollout": True}, [1, 2]),
        (["--head", "2"], {"head": 2}, [1, 2]),
        (["--layer", "2,1"], {"layer": 1}, [2, 1]),
        (["--query", "0.9,0.1"], {"query": [0, 1]}, [1, 2]),
    ],
)
def test_the_explorer_opens_with_the_requested_view(mapped_run, words, changes, layers):
    data = explorer(mapped_run, save_picture("x.png", (20, 12)), *words)
    assert data["opening"] == OPENING | changes
    assert data["scenes"][0]["layers"] == layers
    assert data["scenes"][0]["box"] == pytest.approx([0.2, 0, 0.6, 1])


def test_every_picture_gets_a_page(mapped_run):
    paths = [save_picture(name, (10, 10)) for name in ("a.png", "b.png")]
    found = document("attn-map", mapped_run, *paths, "--format", "html")
    files = [row["file"] for row in found["pictures"]]
    assert files == found["files"] == ["a-explorer.html", "b-explorer.html"]
    data = parse(Path(files[1]).read_bytes()).data
    assert [scene["name"] for scene in data["scenes"]] == ["b.png"]


def test_without_cls_the_page_opens_with_a_map_without_a_class(copy_of_run, here):
    run = copy_of_run(here / "run", {"train.epochs": 1})
    assert explorer(run, save_picture("x.png", (8, 8)))["opening"]["rollout"]


def test_runs_share_the_script_of_a_page_and_each_has_its_pictures(copy_of_run):
    runs = [copy_of_run(Path(name), {"train.epochs": 1}) for name in ("one", "two")]
    said(0, "visualize", *runs, "--what", "explorer")
    assert parse(Path("figures/one/explorer.html").read_bytes()).data["scenes"]
    page = Path("figures/index.html").read_text()
    assert (page.count("<script>"), page.count("script-src 'sha256-")) == (1, 1)
    first, second = page.split('class="explorer"')[1:]
    assert first.count("data:image/png;base64,") == second.count("data:image/png;base64,") == 2
