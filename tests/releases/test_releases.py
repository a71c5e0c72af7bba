"""Run folders of earlier releases are still read, verified, measured, looked into and continued.

``python -m tests.releases.make`` adds the folder of a release.
"""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.releases.make import write_pictures
from vitcli import __version__
from vitcli.cli.main import app

RELEASES = sorted(path.parent for path in Path(__file__).parent.glob("*/config.yaml"))


@pytest.fixture(params=RELEASES, ids=lambda path: path.name)
def run(request, here) -> Path:
    """A copy of the folder, called ``old``, beside the pictures that it was trained on."""
    write_pictures(here / "pictures")
    return Path(shutil.copytree(request.param, here / "old"))


def vitcli(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def test_it_is_read_and_verified(run):
    listed = vitcli("runs", "show", "old")
    assert listed.exit_code == 0, listed.output
    verified = vitcli("runs", "verify", "old")
    assert verified.exit_code == 0, verified.output


def test_it_measures_what_it_measured(run):
    stored = json.loads((run / "result.json").read_text())
    measured = vitcli("eval", "old", "--json")
    assert measured.exit_code == 0, measured.output
    found = json.loads(measured.stdout)
    assert found["test_accuracy"] == stored["test_accuracy"]
    assert found["loss"] == pytest.approx(stored["test_loss"], rel=1e-5)


def test_its_attention_and_weights_are_shown(run):
    picture = next(Path("pictures/test/dark").iterdir())
    shown = vitcli("attn-map", "old", str(picture), "-o", "map.png")
    assert shown.exit_code == 0, shown.output
    assert Path("map.png").stat().st_size > 1000
    drawn = vitcli("visualize", "old", "--what", "curves,heads", "--num-images", "4")
    assert drawn.exit_code == 0, drawn.output


def test_stopped_half_way_it_is_continued_once_inexactness_is_allowed(run):
    """Another version has other bits, so it asks first."""
    shutil.rmtree(run / "checkpoints" / "4")
    (run / "result.json").unlink()
    (run / "status.json").write_text('{"state": "interrupted", "step": 2, "reason": ""}')
    version = json.loads((run / "meta.json").read_text())["vitcli"]
    if version != __version__:
        refused = vitcli("train", "--resume", "old", "--device", "cpu")
        assert refused.exit_code == 2
        assert f"vitcli {version} -> {__version__}" in refused.output
    continued = vitcli("train", "--resume", "old", "--device", "cpu", "--allow-inexact")
    assert continued.exit_code == 0, continued.output
    assert json.loads((run / "status.json").read_text())["step"] == 4
    if version != __version__:
        assert "from step 2" in json.loads((run / "meta.json").read_text())["inexact"][0]


def test_there_is_a_folder_to_test():
    assert "0.8.0" in [path.name for path in RELEASES]
