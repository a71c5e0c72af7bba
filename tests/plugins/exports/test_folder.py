"""`vitcli export --to FOLDER`: a folder that classifies pictures without vitcli and torch."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from tests.cli.commands import document, said
from tests.core.specs import changed
from tests.plugins.exports.test_export import DATA, untrained_run
from tests.plugins.exports.test_recipe import KINDS, picture
from tests.runner.train.conftest import often
from vitcli.core.spec import model_spec
from vitcli.plugins.exports import export, recipe
from vitcli.runner.run.folder import RunDir

SIZES = {"img_size": (24, 32), "num_classes": 5}
TIMM = model_spec(family="timm", name="test_vit", in_chans=3, **SIZES | {"img_size": (32, 32)})
MODELS = {
    "crop": changed(in_chans=3, patch_size=8, **SIZES),
    "pad": changed(in_chans=1, patch_size=8, **SIZES),
    "stretch": changed(in_chans=3, patch_size=8, **SIZES),
    "timm": TIMM,
}
GREY = {"mean": (0.4,), "std": (0.3,), "channels": "grey"}
RESULT = {
    **{"test_accuracy": 0.8125, "num_test": 96, "temperature": 4.0},
    **{"set_threshold_0.9": 0.25, "set_threshold_0.99": 0.0},
}
BLOCKED = (
    "import runpy, sys; sys.modules.update(torch=None, torchvision=None, vitcli=None);"
    " runpy.run_path('../out/recipe.py', run_name='__main__')"
)
"""Runs the recipe in a process in which torch and vitcli cannot be imported."""


def run_of(name: str, folder: Path) -> RunDir:
    fields = DATA | {"fit": name if name in ("pad", "stretch") else "crop"}
    fields |= {"name": "imagefolder:pets"} | (GREY if name == "pad" else {})
    run = untrained_run(folder, MODELS[name], 0.3, data=fields)
    run.set_result(RESULT)
    return run


@pytest.fixture
def traced_once(here, monkeypatch, tmp_path_factory) -> None:
    """Trace the model ``crop`` once in a process, because that takes seconds."""
    form, kept = export.FORMATS["onnx"], tmp_path_factory.getbasetemp() / "crop.onnx"

    def write(model: export.TrainedModel, path: Path) -> dict[str, str]:
        facts = {} if kept.exists() else form.write(model, kept)
        shutil.copy(kept, path)
        return facts

    monkeypatch.setitem(export.FORMATS, "onnx", replace(form, write=write))


@pytest.mark.parametrize("name", often(MODELS, "crop"))
def test_the_folder_alone_gives_the_answers_of_predict(here, name):
    run_of(name, here / "run")
    said(0, "export", "run", "--to", "out")
    Path("files").mkdir()
    for file, kind in KINDS.items():
        Path("files", file).write_bytes(picture(kind))
    Path("files", "none.jpg").write_text("text")
    typed = [sys.executable, "-I", "-W", "ignore", "-c", BLOCKED, *sorted([*KINDS, "none.jpg"])]
    done = subprocess.run(typed, cwd="files", capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("none.jpg: cannot identify")
    assert done.stderr.count("\n") == 1
    answers = {file: rest for file, *rest in (row.split("\t") for row in done.stdout.splitlines())}
    predicted = document("predict", "run", *(f"files/{file}" for file in KINDS))["pictures"]
    assert len(answers) == len(predicted) == len(KINDS)
    for row in predicted:
        likeliest, share = answers[Path(row["file"]).name]
        assert likeliest == row["class"], row["file"]
        assert float(share) == pytest.approx(row["probability"], abs=1e-3), row["file"]
    shares = [row["probability"] for row in predicted]
    assert max(shares) - min(shares) > 0.05  # else any picture would do


def test_the_folder_says_what_it_is_and_is_replaced_unless_it_was_edited(here, traced_once):
    run_of("crop", here / "run")
    files = document("export", "run", "--to", "out", "--no-check")["files"]
    sums = Path("out/SHA256SUMS").read_text().splitlines()
    hashes = {name: value for value, name in map(str.split, sums)}
    assert {Path(file).name for file in files} == {*hashes, "SHA256SUMS"}
    for name, value in hashes.items():
        assert sha256(Path("out", name).read_bytes()).hexdigest() == value
    assert json.loads(Path("out/labels.json").read_text()) == list(DATA["class_names"])
    assert "python recipe.py photo.jpg" in Path("out/README.md").read_text()
    _, metadata = recipe.load("out/model.onnx")
    assert (metadata["temperature"], metadata["thresholds"]) == (4.0, {"0.9": 0.25})
    run_of("crop", here / "other").set_result(RESULT | {"test_accuracy": 0.5})
    said(0, "export", "other", "--to", "out", "--no-check")
    assert "50.00 %" in Path("out/README.md").read_text()
    Path("out/README.md").write_text("mine")
    assert "out/README.md: this file is not as" in said(2, "export", "run", "--to", "out")
    assert Path("out/README.md").read_text() == "mine"


@pytest.mark.parametrize(
    ("content", "reason"),
    [("e3b0  photos.zip\n", "out/SHA256SUMS: this file is"), ("mine\n", "out/SHA256SUMS")],
)
def test_sums_of_other_files_are_kept(here, traced_once, content, reason):
    run_of("crop", here / "run")
    Path("out").mkdir()
    Path("out/SHA256SUMS").write_text(content)
    assert reason in said(2, "export", "run", "--to", "out", "--no-check")
    assert [path.name for path in Path("out").iterdir()] == ["SHA256SUMS"]


def test_what_a_folder_cannot_hold_is_one_line(here):
    reason = "classifies grey or RGB pictures; for other programs, type: vitcli export --format"
    task = {"name": "mae", "decoder_dim": 16, "decoder_depth": 1, "decoder_num_heads": 2}
    untrained_run(here / "run", changed(), task=task)
    assert reason in said(2, "export", "run", "--to", "out")
    assert not Path("out").exists()
