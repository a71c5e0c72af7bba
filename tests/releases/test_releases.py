"""Run folders of earlier releases are still read, verified, measured, looked into and continued."""

import json
import shutil
from pathlib import Path

import pytest

from tests.own_code import vitcli
from tests.releases.make import write_pictures
from vitcli import __version__

RELEASES = sorted(path.parent for path in Path(__file__).parent.glob("*/config.yaml"))


@pytest.fixture(params=RELEASES, ids=lambda path: path.name)
def run(request, here) -> Path:
    write_pictures(here / "pictures")
    return Path(shutil.copytree(request.param, here / "old"))


def test_it_is_read_and_measures_what_it_measured(run):
    vitcli("runs show old")
    vitcli("runs verify old")
    stored = json.loads((run / "result.json").read_text())
    found = json.loads(vitcli("eval old --json"))
    assert found["test_accuracy"] == stored["test_accuracy"]
    assert found["loss"] == pytest.approx(stored["test_loss"], rel=1e-5)


def test_its_attention_and_weights_are_shown(run):
    picture = next(Path("pictures/test/dark").iterdir())
    vitcli(f"attn-map old {picture} -o map.png")
    assert Path("map.png").stat().st_size > 1000
    vitcli("visualize old --what curves,heads --num-images 4")


def test_stopped_half_way_it_is_continued_once_inexactness_is_allowed(run):
    """Another version has other bits, so it asks first."""
    half, last = sorted(int(path.name) for path in (run / "checkpoints").iterdir())
    shutil.rmtree(run / "checkpoints" / f"{last}")
    (run / "result.json").unlink()
    status = {"state": "interrupted", "step": half, "reason": ""}
    (run / "status.json").write_text(json.dumps(status))
    version = json.loads((run / "meta.json").read_text())["vitcli"]
    if version != __version__:
        refused = vitcli("train --resume old --device cpu", 2)
        assert f"vitcli {version} -> {__version__}" in refused
    vitcli("train --resume old --device cpu --allow-inexact")
    assert json.loads((run / "status.json").read_text())["step"] == last
    if version != __version__:
        assert f"from step {half}" in json.loads((run / "meta.json").read_text())["inexact"][0]
