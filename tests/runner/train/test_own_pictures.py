"""Trainings on a small folder of one's own pictures."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from tests.stopping import stop_after
from vitcli.runner.errors import ConfigError, InputError, StoppedError
from vitcli.runner.evaluate.scores import evaluate_run
from vitcli.runner.experiment.config import load_experiment
from vitcli.runner.experiment.resolve import shrink_batch, steps_per_epoch
from vitcli.runner.run.differing import differing_fields
from vitcli.runner.text import ignore_message
from vitcli.runner.train.dry_run import dry_run
from vitcli.runner.train.estimate import warn_of_patches
from vitcli.runner.train.ranks import refuse_parts
from vitcli.runner.train.start import Request, resume_experiment, start


@pytest.fixture
def few(tiny, pictures):
    """The tiny experiment with batches of 128, on 2 x 20 pictures to train and 2 x 12 to test."""
    tiny.write_text(tiny.read_text().replace("batch_size: 16", "batch_size: 128"))
    for path in [*(pictures / "train").glob("*/[23]?.png")]:
        path.unlink()
    return tiny


def train(few, changes=None, messages=None, **options):
    experiment = load_experiment(str(few), changes or {})
    request = Request(**{"output": Path("run"), **options})
    return start(experiment, request, on_message=(messages or []).append)


def test_a_small_folder_is_trained_in_smaller_batches_and_the_run_records_it(few, here):
    messages = [""]
    run = train(few, messages=messages).run
    assert (
        "note: 40 training images are fewer than 4 batches of 128; train.batch_size is now 10:"
        " 4 steps per epoch, 16 in all; to train longer: --epochs 50"
    ) in messages
    asked, used = load_experiment(str(few)).spec, run.spec()
    assert used.train == asked.train.replace(batch_size=10)
    assert used.optim == asked.optim
    assert run.read("meta.json")["batch_size_shrunk_from"] == 128
    assert run.metrics()[-1]["step"] == 4 * asked.train.epochs
    assert not train(few).trained  # the same experiment is finished


def test_a_shrunk_run_continues_as_if_it_had_not_stopped(few, here, monkeypatch):
    calm = train(few, output=here / "calm").result
    for folder in ("auto", "named"):
        with monkeypatch.context() as patch:
            stop_after(patch, 7)
            with pytest.raises(StoppedError):
                train(few, output=here / folder)
    auto = train(few, output=here / "auto", resume=True).result
    experiment, path = resume_experiment("named")
    named = start(experiment, Request(output=path, resume=True)).result
    assert calm["test_loss"] == auto["test_loss"] == named["test_loss"]


def test_a_typed_batch_size_is_kept_and_refused(few, here):
    messages = [""]
    with pytest.raises(ConfigError, match=r"40 images do not fill one batch of 64"):
        train(few, {"train.batch_size": 64}, messages)
    assert not any(text.startswith("note") for text in messages)


@pytest.mark.parametrize(
    ("num_train", "changes", "batch", "ranks"),
    [
        (40, {}, 10, 1),
        (5, {}, 2, 1),
        (3, {}, 1, 1),
        (1, {}, 1, 1),
        (5, {"model.family": "resnet18"}, 2, 1),
        (40, {"train.accumulate": 4}, 8, 1),
        (41, {"train.accumulate": 4}, 8, 2),
    ],
)
def test_the_advice_for_few_images_names_a_batch_that_they_fill(
    few, num_train, changes, batch, ranks
):
    spec = load_experiment(str(few), changes).spec
    with pytest.raises(ConfigError, match=f"-s train.batch_size={batch}$"):
        steps_per_epoch(spec, num_train, ranks)
    advised = spec.replace(train=spec.train.replace(batch_size=batch))
    assert steps_per_epoch(advised, num_train, ranks) >= 1
    refuse_parts(advised, ranks)


def test_images_that_fill_no_batch_of_that_many_parts_get_no_advice_that_fails(few):
    spec = load_experiment(str(few), {"train.accumulate": 32}).spec
    with pytest.raises(ConfigError, match=r"train\.accumulate.* it takes 32$"):
        steps_per_epoch(spec, 5)


@pytest.mark.parametrize(
    ("num_train", "batch", "used", "steps", "advice"),
    [
        (96, 64, 24, "4 steps per epoch, 16 in all", "--epochs 50"),
        (600, 512, 150, "4 steps per epoch, 16 in all", "--epochs 50"),
        (127, 32, 31, "4 steps per epoch, 16 in all", "--epochs 50"),
        (128, 32, 32, "4 steps per epoch, 16 in all", "--epochs 50"),
        (511, 32, 32, "15 steps per epoch, 60 in all", "--epochs 14"),
        (512, 32, 32, None, None),
        (50_000, 512, 512, None, None),
    ],
)
def test_an_epoch_of_few_pictures_has_four_steps_and_their_number_is_told(
    few, num_train, batch, used, steps, advice
):
    experiment, said = load_experiment(str(few)), [""]
    spec = experiment.spec.replace(train=experiment.spec.train.replace(batch_size=batch))
    assert shrink_batch(experiment, spec, num_train, said.append).train.batch_size == used
    assert (steps is not None) == (len(said) == 2)
    assert not steps or (steps in said[1] and said[1].endswith(advice))


def test_a_run_that_began_with_a_larger_batch_keeps_it(few, here, monkeypatch):
    """Earlier versions shrank a batch only if the images did not fill it."""
    with monkeypatch.context() as patch:
        patch.setattr("vitcli.runner.train.start.shrink_batch", lambda *given, **_: given[1])
        few.write_text(few.read_text().replace("batch_size: 128", "batch_size: 16"))
        stop_after(patch, 3)
        with pytest.raises(StoppedError):
            train(few)
    run = train(few, resume=True).run
    assert run.spec().train.batch_size == 16
    assert run.read("result.json")["steps"] == 2 * run.spec().train.epochs


def test_a_trial_keeps_its_batch_size(few):
    experiment = load_experiment(str(few))
    shrunk = shrink_batch(experiment, experiment.spec, 40, ignore_message)
    trial = replace(experiment, variant="baseline")
    assert shrunk.train.batch_size == 10
    assert shrink_batch(trial, experiment.spec, 40, ignore_message) == experiment.spec


@pytest.mark.parametrize(
    ("changes", "size"),
    [({"train.accumulate": 4}, 8), ({"train.accumulate": 32}, 32), ({"optim.lr": 0.1}, 10)],
)
def test_a_shrunk_batch_has_equal_parts(few, changes, size):
    experiment = load_experiment(str(few), changes)
    assert shrink_batch(experiment, experiment.spec, 40, ignore_message).train.batch_size == size


def test_a_run_without_the_bad_files_is_measured_and_continued_on_the_same_images(
    few, here, pictures, monkeypatch
):
    bad = pictures / "test" / "dark" / "bad.png"
    bad.write_text("hello")
    with pytest.raises(InputError, match=r"bad\.png"):
        train(few)
    changes = {"data.skip_bad": True}
    with monkeypatch.context() as patch:
        stop_after(patch, 3)
        with pytest.raises(StoppedError):
            train(few, changes)
    assert train(few, changes, resume=True).trained
    messages = [""]
    assert evaluate_run("run", on_message=messages.append).num_images == 24
    assert any("left out" in text for text in messages)
    assert not any("other images" in text for text in messages)
    Image.new("RGB", (8, 8)).save(bad)
    messages = [""]
    evaluate_run("run", on_message=messages.append)
    assert any("other images" in text for text in messages)


def test_a_dry_run_says_what_the_training_says(few, here, pictures):
    shutil.copy(pictures / "train" / "dark" / "1.png", pictures / "test" / "bright" / "copy.png")
    (pictures / "test" / "dark" / "bad.png").write_text("hello")
    (pictures / "train" / "empty").mkdir()
    experiment = load_experiment(str(few), {"data.skip_bad": True, "data.val_split": 4})
    request, messages, said = Request(output=here / "run"), [""], [""]
    found = dry_run(experiment, request, said.append)
    assert not (here / "run").exists()
    run = start(experiment, request, on_message=messages.append).run
    notes = [text for text in messages if not text.startswith("reading")]
    assert [text for text in said if not text.startswith("reading")] == notes
    for text in ("found in train, too", "left out", "train.batch_size is now 9", "is skipped"):
        assert any(text in note for note in notes), text
    assert found.spec == run.spec()
    assert (found.num_train, found.num_test) == (36, 25)
    assert "36 for training, 4 for validation, 25 for testing; 2 classes, 8x8" in found.as_text()


def test_a_dry_run_is_refused_as_the_training_is(few, here, pictures):
    (pictures / "test" / "dark" / "bad.png").write_text("hello")
    experiment = load_experiment(str(few))
    errors = []
    for attempt in (lambda: dry_run(experiment, Request(), ignore_message), lambda: train(few)):
        with pytest.raises(InputError) as caught:
            attempt()
        errors.append(str(caught.value))
    assert errors[0] == errors[1]


def test_a_dry_run_without_the_data_says_what_the_training_would_do(here, monkeypatch):
    experiment, said = load_experiment("cifar10-tiny"), [""]
    dry_run(experiment, Request(), said.append)
    assert any("would stop here: cifar10 is not in" in text for text in said)
    monkeypatch.delenv("VITCLI_OFFLINE")
    monkeypatch.setenv("VITCLI_CACHE", str(here / "empty"))
    dry_run(experiment, Request(), said.append)
    assert "note: the training would first download cifar10 (170 MB)" in said


def test_the_estimated_time_includes_the_start(few, here):
    found = dry_run(load_experiment(str(few)), Request(), ignore_message, spent_seconds=1000.0)
    document = found.as_json()
    assert document["estimated_startup_seconds"] > 1000
    assert document["estimated_seconds"] == found.seconds
    assert "about 16 min" in found.as_text()


@pytest.fixture
def odd(few, pictures):
    """The experiment with patches of 4, on pictures of 40x50 pixels."""
    for path in pictures.rglob("*.png"):
        Image.open(path).resize((50, 40)).save(path)
    return few


def test_pictures_that_the_patches_do_not_divide_are_resized_with_a_note(odd, here, monkeypatch):
    said = [""]
    found = dry_run(load_experiment(str(odd)), Request(output=Path("run")), said.append)
    messages = [""]
    with monkeypatch.context() as patch:
        stop_after(patch, 7)
        with pytest.raises(StoppedError):
            train(odd, messages=messages)
    for texts in (said, messages):
        (note,) = [text for text in texts if text.startswith("note: patches")]
        assert "resized to 40x48 (-s data.resize=[40,48])" in note
    run = train(odd, resume=True).run
    spec = run.spec()
    assert found.spec == spec
    assert spec.model.img_size == spec.data.resize == (40, 48)
    assert not train(odd).trained, "the same experiment is finished"
    meta = run.read("meta.json")
    assert "data.resize" not in differing_fields(
        spec, meta, {"tiny": load_experiment(str(odd)).spec}
    )
    messages = [""]
    assert evaluate_run("run", on_message=messages.append).num_images == 24
    assert not any("other images" in text for text in messages)
    experiment, path = resume_experiment("run")
    assert not start(experiment, Request(output=path, resume=True)).trained


def test_a_run_may_have_images_that_the_model_of_its_experiment_would_refuse(odd, here):
    run = train(odd, {"model.patch_size": 7, "train.epochs": 1}).run
    assert run.spec().model.img_size == (35, 49), "patches of 4, as in the experiment, do not fit"
    experiments = {"tiny": load_experiment(str(odd)).spec}
    found = differing_fields(run.spec(), run.read("meta.json"), experiments)
    assert found == {"model.patch_size": 7, "train.epochs": 1}


@pytest.mark.parametrize("changes", [{"data.resize": 30}, {"model.img_size": 30}])
def test_a_size_that_the_user_set_stays_and_is_refused(odd, here, changes):
    with pytest.raises(ConfigError, match=r"data\.resize=28|does not divide 30x30"):
        train(odd, changes)


def test_a_trial_of_a_study_is_not_resized(odd, here):
    trial = replace(load_experiment(str(odd)), variant="baseline")
    with pytest.raises(ConfigError, match=r"does not divide 40x50.*data\.resize=\[40,48\]"):
        start(trial, Request(output=Path("run")))


def test_images_of_many_patches_are_reported_with_a_smaller_size(few, here, pictures):
    for path in pictures.rglob("*.png"):
        Image.open(path).resize((160, 160)).save(path)
    experiment, said = load_experiment(str(few), {"train.epochs": 0}), [""]
    found = dry_run(experiment, Request(), said.append)
    (note,) = [text for text in said if "1,600 patches" in text]
    assert note.endswith("-s data.resize=64")
    assert f"{found.memory_bytes / 2**30:.1f} GiB" in note
    messages = [""]
    train(few, {"train.epochs": 0}, messages)
    assert note in messages
    quiet = [""]
    warn_of_patches(replace(experiment, variant="baseline"), found.spec, quiet.append)
    assert quiet == [""]
