"""Trainings on a small folder of one's own pictures."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.runner.train import conftest
from tests.runner.train.conftest import stops_after, trains
from vitcli.runner.data.load import load_data
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.evaluate.predict import classifier_of_run
from vitcli.runner.evaluate.scores import evaluate_run
from vitcli.runner.experiment.config import load_experiment
from vitcli.runner.experiment.resolve import shrink_batch
from vitcli.runner.run.compare import differing_fields
from vitcli.runner.run.folder import RunDir
from vitcli.runner.run.record import read_record
from vitcli.runner.text import ignore_message
from vitcli.runner.train.dry_run import dry_run
from vitcli.runner.train.prepare import Request
from vitcli.runner.train.train import train as run_training


@pytest.fixture
def few(tiny, pictures):
    """Two epochs with batches of 128, on 2 x 20 pictures to train and 2 x 12 to test."""
    text = tiny.read_text().replace("epochs: 4, batch_size: 16", "epochs: 2, batch_size: 128")
    tiny.write_text(text)
    for path in [*(pictures / "train").glob("*/[23]?.png")]:
        path.unlink()
    return tiny


def train(few, changes=None, output="run", **options):
    return conftest.train(few, output, changes, **options)


def test_a_small_folder_is_trained_in_smaller_batches_and_continued(few, here):
    calm = train(few, output=here / "calm")
    asked, used = load_experiment(str(few)).spec, calm.folder.spec()
    assert used.train == asked.train.replace(batch_size=10)
    assert used.optim == asked.optim
    assert calm.meta["batch_size_shrunk_from"] == 128
    assert calm.metrics[-1]["step"] == 4 * asked.train.epochs
    assert not trains(train, few, output=here / "calm"), "the same experiment is finished"
    for folder in ("auto", "named"):
        with stops_after(7):
            train(few, output=here / folder)
    auto = train(few, output=here / "auto", resume=True).result
    named = conftest.continue_run(RunDir(here / "named")).result
    assert calm.result["test_loss"] == auto["test_loss"] == named["test_loss"]


def deepen(path: Path, side: tuple[int, int]) -> None:
    """Replace a picture by a TIFF file of two grey pages: its values with 12 bits, and the rest."""
    with Image.open(path) as picture:
        values = np.asarray(picture.convert("L").resize(side)).astype("u2") * 16
    pages = [Image.fromarray(page) for page in (values, 4095 - values)]
    pages[0].save(path, "TIFF", save_all=True, append_images=pages[1:])


@pytest.mark.parametrize(
    "fields",
    [
        {"fit": "crop"},
        {"fit": "pad", "channels": "pages", "levels": [100, 4095]},
        {"fit": "stretch", "channels": [1], "levels": 4095},
        {"channels": [1], "levels": 4095, "mean": [0.5, 0.4, 0.3], "std": [0.1, 0.2, 0.3]},
        {"channels": "grey", "mean": [0.5, 0.4, 0.3], "std": [0.1, 0.2, 0.3]},
    ],
)
def test_predict_fits_pictures_like_the_training(few, pictures, fields):
    for i, path in enumerate(sorted(pictures.rglob("*.png"))):
        if "fit" in fields and len(fields) == 1:
            with Image.open(path) as picture:
                picture.resize((40 + i % 3, 20)).save(path)
        elif "levels" in fields:
            deepen(path, (40 + i % 3, 20))
    changes = {f"data.{field}": value for field, value in fields.items()}
    run = train(few, changes | {"train.epochs": 1}).folder
    spec = run.spec()
    names = load_data(spec.data).test.names
    with np.load(run.path / "predictions.npz") as stored:
        logits = torch.from_numpy(stored["logits"])
    paths = [str(pictures / name) for name in names]
    found = [prediction.probabilities for prediction in classifier_of_run(run)(paths)]
    shares = torch.tensor([[row[name] for name in spec.data.class_names] for row in found])
    torch.testing.assert_close(shares, logits.float().softmax(1), atol=1e-5, rtol=0)


def test_a_training_refuses_a_leak_unless_it_is_allowed(few, pictures):
    leak = pictures / "test" / "dark" / "leak.bmp"
    with Image.open(next((pictures / "train" / "dark").iterdir())) as picture:
        picture.save(leak)
    with pytest.raises(InputError, match=r"(?s)leak\.bmp = train/dark.*--allow-leaks"):
        train(few)
    assert not Path("run").exists()
    train(few, {"data.allow_leaks": True})
    assert evaluate_run("run").num_images == 25


@pytest.mark.parametrize(
    ("changes", "num_train", "batch", "used"),
    [
        *(({}, *sizes) for sizes in ((96, 64, 24), (127, 32, 31), (128, 32, 32), (512, 32, 32))),
        ({}, 50_000, 512, 512),
        ({"train.accumulate": 4}, 40, 128, 8),
        ({"train.accumulate": 32}, 40, 128, 32),
        ({"train.batch_size": 64}, 40, 64, 64),  # a size that the user typed
    ],
)
def test_an_epoch_of_few_pictures_has_four_steps(few, changes, num_train, batch, used):
    experiment = load_experiment(str(few), changes)
    spec = experiment.spec.replace(train=experiment.spec.train.replace(batch_size=batch))
    assert shrink_batch(experiment, spec, num_train, ignore_message).train.batch_size == used
    trial = replace(experiment, variant="baseline")
    assert shrink_batch(trial, spec, num_train, ignore_message) == spec, "a trial keeps its batch"


def test_a_run_without_the_bad_files_is_measured_and_continued_on_the_same_images(
    few, here, pictures
):
    bad = pictures / "test" / "dark" / "bad.png"
    bad.write_text("hello")
    with pytest.raises(InputError, match=r"bad\.png"):
        train(few)
    changes = {"data.skip_bad": True}
    with stops_after(3):
        train(few, changes)
    assert trains(train, few, changes, resume=True)
    measured = evaluate_run("run")
    assert (measured.num_images, measured.notes) == (24, [])
    Image.new("RGB", (8, 8)).save(bad)
    assert "other images" in evaluate_run("run").notes[0]


def test_a_dry_run_says_what_the_training_says(few, here, pictures):
    shutil.copy(pictures / "train" / "dark" / "1.png", pictures / "test" / "bright" / "copy.png")
    (pictures / "test" / "dark" / "bad.png").write_text("hello")
    (pictures / "train" / "empty").mkdir()
    changes = {"data.skip_bad": True, "data.allow_leaks": True, "data.val_split": 4}
    experiment = load_experiment(str(few), changes)
    messages, said = [""], [""]
    request = Request(output=here / "run", on_message=said.append)
    costs = dry_run(experiment, request, spent_seconds=1000.0)
    assert not (here / "run").exists()
    run = run_training(experiment, replace(request, on_message=messages.append)).folder
    notes = [text for text in messages if not text.startswith("reading")]
    assert [text for text in said if not text.startswith("reading")] == notes
    assert len(notes) >= 5, "a copy, a bad file, an empty class and the batch"
    assert costs.spec == run.spec()
    assert costs.images == (36, 4, 25)
    assert costs.seconds["start"] > 1000


def test_pictures_that_the_patches_do_not_divide_are_resized_with_a_note(few, pictures):
    for path in pictures.rglob("*.png"):
        Image.open(path).resize((50, 40)).save(path)
    said = [""]
    request = Request(output=Path("run"), on_message=said.append)
    costs = dry_run(load_experiment(str(few)), request)
    with stops_after(7):
        train(few, on_message=said.append)
    assert len([text for text in said if "data.resize=[40,48]" in text]) == 2
    run = train(few, resume=True).folder
    spec = run.spec()
    assert costs.spec == spec
    assert spec.model.img_size == spec.data.resize == (40, 48)
    assert not trains(train, few), "the same experiment is finished"
    base = {"tiny": load_experiment(str(few)).spec}
    differing = differing_fields("tiny", spec, read_record(run).meta, base)
    assert "data.resize" not in differing
    measured = evaluate_run("run")
    assert (measured.num_images, measured.notes) == (24, [])
    trial = replace(load_experiment(str(few)), variant="baseline")
    with pytest.raises(ConfigError, match=r"data\.resize=\[40,48\]"):
        run_training(trial, Request(output=Path("trial")))
