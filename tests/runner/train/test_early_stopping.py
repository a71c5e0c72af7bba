"""Validation images: which weights ``train.early_stopping`` keeps, and trainings without a test."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.cli.commands import printed
from tests.runner.train.conftest import continue_run, stops_after, train, trains
from tests.same_run import assert_same_run
from vitcli import load_model
from vitcli.cli.live import TrainingDisplay
from vitcli.core.metrics.confidence import COVERAGES, set_threshold
from vitcli.core.objectives import classify
from vitcli.core.objectives.classify import Classify
from vitcli.runner.data.load import load_data
from vitcli.runner.errors import ConfigError, DivergedError
from vitcli.runner.evaluate.predict import classifier_of_run
from vitcli.runner.evaluate.scores import evaluate_run
from vitcli.runner.evaluate.trained_run import load_trained_run
from vitcli.runner.run.folder import RunDir, steps
from vitcli.runner.run.record import RunRecord, read_record
from vitcli.runner.run.verify import verify_run
from vitcli.runner.study.definition import load_study
from vitcli.runner.study.states import trial_state

EARLY = {"data.val_split": 16, "train.early_stopping": 2, "train.epochs": 6}


def train_early(tiny: Path, folder: str, patience: int | None) -> RunRecord:
    return train(tiny, folder, EARLY | {"train.early_stopping": patience}, resume=True)


@pytest.fixture
def script(monkeypatch):
    original = Classify.measure

    def set_values(*values: float, **others: tuple[float, ...]) -> None:
        left = zip(values, *others.values(), strict=True)

        def measure(self, outputs):
            is_validation = len(outputs["labels"]) == 16
            found = zip(("accuracy", *others), next(left), strict=True) if is_validation else ()
            return original(self, outputs) | dict(found)

        monkeypatch.setattr(Classify, "measure", measure)

    return set_values


def test_the_headline_can_be_another_metric(tiny, script):
    script(0.1, 0.2, 0.3, 0.4, macro_f1=(0.6, 0.7, 0.6, 0.6))
    found = train(tiny, "run", EARLY | {"task.headline": "macro_f1"})
    assert found.result["epochs"] == 2
    assert found.result["best_val_macro_f1"] == 0.7
    assert "macro-F1" in printed("train", "--resume", "run").splitlines()[0]
    assert not [each for each in verify_run(found.folder) if each.is_bad]
    study = tiny.with_name("study.yaml")
    study.write_text(
        "base: tiny.yaml\ntask: {headline: macro_f1}\nseeds: [0]\n"
        "variants: {a: {}, b: {optim.lr: 0.1}}\n"
    )
    with pytest.raises(ConfigError, match=r"remove task\.headline"):
        load_study(str(study))


@pytest.mark.parametrize(
    ("values", "epochs", "stopped"),
    [((0.5, 0.4, 0.6, 0.5, 0.7, 0.6), 5, 6), ((0.5, 0.5, 0.5), 3, 3)],
)
def test_it_ends_with_the_best_weights(tiny, script, values, epochs, stopped):
    script(*values)
    found = train_early(tiny, "run", 2)
    assert found.result["epochs"] == epochs
    assert found.result["stopped_at"] == stopped * 4
    assert found.result["best_val_accuracy"] == found.result["val_accuracy"] == max(values)
    assert list(steps(found.folder.checkpoints)) == [found.result["steps"]] == [epochs * 4]
    assert [record["step"] for record in found.metrics][-1] == found.result["steps"]
    curve = EventAccumulator(str(found.folder.path)).Reload().Scalars("loss/train")
    assert [event.step for event in curve] == [4 * (i + 1) for i in range(stopped)]
    assert found.step == found.result["steps"]
    assert [each for each in verify_run(found.folder) if each.is_bad] == []
    assert evaluate_run("run").measured["loss"] == pytest.approx(found.result["test_loss"])


def test_a_killed_training_ends_with_the_same_weights(tiny, script):
    values = (0.5, 0.7, 0.6, 0.6)
    script(*values)
    calm = train_early(tiny, "calm", 2)
    script(*values)
    with stops_after(15):
        train_early(tiny, "stopped", 2)
    found = train_early(tiny, "stopped", 2)
    assert_same_run(calm.folder, found.folder)
    assert found.result["stopped_at"] == calm.result["stopped_at"] == 16
    text = f"base: {tiny.name}\nseeds: [0]\nvariants: {{full: {{}}}}\n"
    text += "data: {val_split: 16}\ntrain: {early_stopping: 2, epochs: 6}\n"
    tiny.with_name("study.yaml").write_text(text)
    study = load_study("study.yaml")
    state = trial_state(study.trials()[0], calm.folder, study.threads)
    assert state.state == "finished", "a trial ends at its best epoch"


@pytest.fixture
def from_probe(tiny, copy_of_run):
    copy_of_run(Path("first"), {"train.epochs": 1})
    fields = EARLY | {"train.init": "first", "train.init_head": "probe"}

    def train_from_probe(folder: str, **changes: object) -> tuple[RunRecord, list[str]]:
        told: list[str] = []
        heard: dict[str, Any] = {"on_event": TrainingDisplay().show, "on_message": told.append}
        return train(tiny, folder, fields | changes, resume=True, **heard), told

    return train_from_probe


def test_a_probe_that_no_epoch_beats_is_kept(from_probe, script, capsys):
    values = (0.7, 0.7, 0.6)
    script(*values, 0.7)
    found, _ = from_probe("run")
    assert (found.result["steps"], found.result["stopped_at"]) == (0, 8)
    assert (found.result["best_val_step"], found.result["best_val_accuracy"]) == (0, 0.7)
    (record,) = found.metrics
    assert (record["step"], record["epoch"], record["val_accuracy"]) == (0, 0, 0.7)
    assert "val_loss" in record
    assert steps(found.folder.checkpoints) == [0]
    assert [each for each in verify_run(found.folder) if each.is_bad] == []
    probe, _ = from_probe("probe", **{"train.epochs": 0})
    assert probe.metrics == [], "without epochs, there is nothing to compare"
    assert (probe.result["val_accuracy"], probe.result["best_val_accuracy"]) == (0.7, None)
    kept, fitted = load_model("run").state_dict(), load_model("probe").state_dict()
    assert all(kept[name].equal(fitted[name]) for name in fitted)
    script(*values)
    with stops_after(5):
        from_probe("killed")
    again, _ = from_probe("killed")
    assert_same_run(found.folder, again.folder)
    assert again.result["best_val_step"] == 0


def test_an_epoch_that_beats_the_probe_is_kept(from_probe, script):
    script(0.5, 0.5, 0.6, 0.6, 0.4)
    found, told = from_probe("run")
    assert (found.result["epochs"], found.result["stopped_at"]) == (3, 16)
    assert [record["epoch"] for record in found.metrics] == [0, 1, 2, 3]
    assert not [text for text in told if "did not beat the probe" in text]


def test_the_temperature_scales_what_predict_says(tiny, pictures, monkeypatch):
    monkeypatch.setattr(classify, "fit_temperature", lambda logits, labels: 4.0)
    found = train(tiny, "run", {"data.val_split": 16, "train.epochs": 1})
    assert found.result["temperature"] == 4
    assert found.result["calibrated_loss"] != found.result["test_loss"]
    classifier, paths = classifier_of_run(found.folder), [*(pictures / "test" / "dark").iterdir()]
    scaled = classifier(paths)[0].probabilities
    plain = dataclasses.replace(classifier, temperature=1.0)(paths)[0].probabilities
    odds = [math.log(top["dark"] / top["bright"]) for top in (scaled, plain)]
    assert odds[0] == pytest.approx(odds[1] / 4, rel=1e-3)


def test_validation_images_give_the_thresholds_of_prediction_sets(tiny):
    found = train_early(tiny, "run", None)
    options: Any = {"device": "cpu", "data_dir": None, "offline": True, "limit_batches": None}
    trained = load_trained_run("run", step=None, on_message=print, **options)
    held_out = trained.task().outputs(trained.module, trained.images("val")).values()
    stored = [found.result[f"set_threshold_{share}"] for share in COVERAGES]
    assert stored == pytest.approx([set_threshold(*held_out, share) for share in COVERAGES])
    assert stored[0] > stored[1] > stored[2] == 0, "16 images are enough for 90 %, but not for 95 %"
    assert "temperature" not in found.result, "no validation image is classified wrongly"


def test_a_head_that_starts_from_a_probe_classifies_without_a_training(tiny, pictures, copy_of_run):
    copy_of_run(Path("first"))
    messages: list[str] = []
    changes = {"train.init": "first", "train.init_head": "probe", "train.epochs": 0}
    found = train(tiny, "probe", changes, on_message=messages.append)
    assert found.result["test_accuracy"] > 0.9
    train(tiny, "random", changes | {"train.init_head": "random"})
    heads = [load_model(name).head.weight for name in ("probe", "random")]
    assert not heads[0].equal(heads[1])
    for picture in [*(pictures / "train" / "bright").iterdir()][3:]:
        picture.unlink()
    trained = train(tiny, "few", changes | {"train.epochs": 1}, on_message=messages.append)
    assert [each["epoch"] for each in trained.metrics] == [1], "no stopping, no epoch 0"


def test_a_metric_that_is_nan_is_never_the_best(tiny, script):
    script(0.5, math.nan)
    with pytest.raises(DivergedError, match="metric is not finite in epoch 2"):
        train_early(tiny, "run", 2)
    run = RunDir(Path("run"))
    assert read_record(run).status == "diverged"
    assert read_record(run).metrics[-1]["val_accuracy"] == 0.5


class Poison:
    names = ()
    """Of pictures, whose content split.json has."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"a test image was read ({name})")

    def __len__(self) -> int:
        raise AssertionError("the test images were counted")


def poisoned(spec, **options) -> Any:
    poison: Any = Poison()
    return dataclasses.replace(load_data(spec, **options), test=poison)


def train_blind(tiny: Path, **options: Any) -> RunRecord:
    changes = {"data.val_split": 20, "train.epochs": 2}
    return train(tiny, "run", changes, without_test=True, load=poisoned, **options)


def test_no_test_image_is_read_and_no_test_score_is_written(tiny):
    with pytest.raises(ConfigError, match=r"data\.val_split is 0"):
        train(tiny, "run", without_test=True)
    assert not Path("run").exists()
    done = train_blind(tiny)
    assert done.result["num_test"] == 0
    assert done.result["val_accuracy"] == done.metrics[-1]["val_accuracy"]
    written = [*done.result, *(key for line in done.metrics for key in line)]
    assert not [key for key in written if key.startswith("test_")]
    assert not Path("run/predictions.npz").exists()
    events = b"".join(path.read_bytes() for path in Path("run").glob("events.*"))
    assert b"accuracy/val" in events
    assert b"accuracy/test" not in events
    assert b"test_accuracy" not in events
    meta = done.meta
    assert (meta["without_test"], meta["num_test"], meta["num_val"]) == (True, 0, 20)
    assert {verdict.state for verdict in verify_run(done.folder)} == {"ok"}
    assert not trains(train_blind, tiny), "it is finished, although it has no test score"


def test_a_continued_training_still_reads_none_whoever_continues_it(tiny):
    with stops_after(3):
        train_blind(tiny)
    done = continue_run(RunDir(Path("run")), load=poisoned)
    assert done.state == "finished"
    assert done.result["num_test"] == 0
    assert printed("train", "--resume", "run").startswith("val accuracy")
