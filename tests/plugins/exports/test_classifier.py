"""`vitcli.load_classifier` and `predict` of an ONNX file: the answers of its run, without torch."""

import json
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
from PIL import Image

import vitcli
from tests.cli.commands import document, said
from tests.patience import HANG
from tests.plugins.exports.test_export import MODELS, untrained_run
from tests.runner.data.test_deep import STACK, flat, raw_tiff, tiff
from vitcli.plugins.exports import recipe

RESULT = {"temperature": 0.5, "set_threshold_0.8": 0.21, "set_threshold_0.9": 0.19}
BLOCKED = """
import json, sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "torchvision"):
            raise ImportError(name)
sys.meta_path.insert(0, Blocker())
import vitcli
classifier = vitcli.load_classifier("model.onnx", reject=0.3)
print(json.dumps([answer.to_dict() for answer in classifier(sys.argv[1:])]))
"""


@pytest.fixture
def exported(here, tmp_path_factory) -> Path:
    """A run and its ONNX file, which are made once in a process."""
    place = tmp_path_factory.getbasetemp() / "exported"
    if not place.exists():
        untrained_run(place / "run", MODELS["vit"], 0.3).set_result(RESULT)
        said(0, "export", place / "run", "--format", "onnx", "-o", place / "model.onnx")
    shutil.copytree(place, here, dirs_exist_ok=True)
    return here


@pytest.fixture
def files(here) -> list[str]:
    """Pictures of several kinds, of which one is none."""
    exif = Image.Exif()
    exif[0x0112] = 6
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (12, 9, 4), dtype=np.uint8)
    image = Image.fromarray(pixels).resize((150, 90), Image.Resampling.BICUBIC)
    image.save("alpha.png")
    image.convert("RGB").save("large.jpg", quality=95, exif=exif)
    image.convert("L").save("grey.webp")
    Image.fromarray(random.integers(0, 2**16, (40, 30), dtype=np.uint16)).save("deep.png")
    Path("none.png").write_text("words")
    return ["alpha.png", "large.jpg", "grey.webp", "deep.png", "none.png"]


def save_with_metadata(file: str, metadata: dict[str, str]) -> None:
    """Save a copy of model.onnx with some metadata changed, or with none."""
    model = onnx.load("model.onnx")
    texts = {entry.key: entry.value for entry in model.metadata_props}
    del model.metadata_props[:]
    onnx.helper.set_model_props(model, metadata and texts | metadata)
    onnx.save(model, file)


def same(one: vitcli.Prediction, other: vitcli.Prediction) -> bool:
    for name in ("file", "accepted", "set", "error"):
        assert getattr(one, name) == getattr(other, name)
    return one.probabilities == pytest.approx(other.probabilities, abs=1e-3)


@pytest.mark.parametrize("options", [{}, {"reject": 0.3}, {"coverage": 0.9}, {"fit": "pad"}])
def test_the_answers_are_those_of_the_run(exported, files, options):
    classifiers = [vitcli.load_classifier(name, **options) for name in ("run", "model.onnx")]
    floats = Image.new("F", (9, 9))
    floats.save("float.tiff")
    Path("signed.tiff").write_bytes(raw_tiff(np.full((1, 8, 8), -9, "i1"), kind=2))
    Path("raw.nef").write_bytes(tiff(flat(9, "u1"), tiffinfo={254: 1}))
    Path("stack.tif").write_bytes(STACK)
    refused = [floats, "float.tiff", "signed.tiff", "raw.nef"]
    answers = [classifier([*files, *refused, "stack.tif"]) for classifier in classifiers]
    assert all(map(same, *answers))
    assert [bool(answer.error) for answer in answers[0]] == [False] * 4 + [True] * 5 + [False]
    notes = [[*classifier.notes()] for classifier in classifiers]
    assert notes[0] == notes[1]
    assert any("only the first page" in note for note in notes[1])
    with ThreadPoolExecutor(16) as pool:
        alone = [*pool.map(classifiers[1], files[:-1] * 8)]
    assert all(map(same, alone, answers[0][:4] * 8))
    assert classifiers[0].name != classifiers[1].name


def test_no_torch_is_needed(exported, files, environment):
    command = [sys.executable, "-c", BLOCKED, *files]
    rows = json.loads(subprocess.check_output(command, env=environment, timeout=HANG))
    wanted = document("predict", "model.onnx", *files[:-1], "--reject", 0.3, "--top", 5)["pictures"]
    assert rows[:-1] == wanted
    assert rows[-1]["error"].startswith("none.png: not a picture")
    said(3, "predict", "model.onnx", *files)


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("missing.onnx", {}, "missing.onnx: cannot be read"),
        ("none.onnx", {}, "none.onnx: no model of 'vitcli export"),
        ("foreign.onnx", {}, "it has no metadata of vitcli"),
        ("edited.onnx", {}, "its metadata name 2 classes of 5 outputs"),
        ("pages.onnx", {}, "pages.onnx: its metadata say other steps"),
        ("earlier.onnx", {}, "take its run in place of the file"),
        ("model.onnx", {"device": "cuda"}, "model.onnx: device cuda"),
        ("model.onnx", {"coverage": 0.95}, "thresholds for 0.8 and 0.9"),
    ],
)
def test_what_is_no_classifier_is_one_line(exported, name, options, text):
    Path("none.onnx").write_text("words")
    pages = recipe.STEPS | {"fit": "pad", "colours": "a channel for each page", "height": 16}
    earlier = {"colours": "RGB", "shape": "crop"}
    for file, metadata in (
        ("foreign.onnx", {}),
        ("edited.onnx", {"class_names": '["a", "b"]'}),
        ("pages.onnx", {"preprocessing": json.dumps(pages)}),
        ("earlier.onnx", {"preprocessing": json.dumps(earlier)}),
    ):
        save_with_metadata(file, metadata)
    with pytest.raises(vitcli.UserError) as caught:
        vitcli.load_classifier(name, **options)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)
