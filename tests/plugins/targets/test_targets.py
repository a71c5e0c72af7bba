"""The tasks ``multilabel`` and ``regress``: what they learn, measure, choose and answer."""

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vitcli
from tests.cli.commands import document, said
from tests.cli.commands import vitcli as command
from tests.plugins.targets.conftest import NAMES
from vitcli.core.data.source import DataSet, Images
from vitcli.core.objectives.objective import task_class
from vitcli.core.spec import ExperimentSpec
from vitcli.plugins.embeddings.figures import features_figure
from vitcli.plugins.targets.measures import best_threshold, f1_scores
from vitcli.runner.errors import ConfigError, UserError
from vitcli.runner.evaluate.trained_run import load_trained_run
from vitcli.runner.experiment.build import filled_module
from vitcli.runner.run.folder import RunDir
from vitcli.runner.run.predictions import read_per_image
from vitcli.runner.visualize.attention_figures import heads_figure


@pytest.mark.parametrize("levels", [5, 10**6])
def test_no_threshold_has_a_larger_micro_f1_than_the_chosen_one(levels):
    is_right = torch.rand(30, 4) < 0.3
    shares = torch.round((torch.rand(30, 4) + 0.5 * is_right) / 1.5 * levels).double() / levels
    chosen = best_threshold(shares, is_right)
    scores = {t: f1_scores(shares >= t, is_right)[0] for t in [chosen, *shares.flatten().tolist()]}
    assert scores[chosen] == max(scores.values())
    assert chosen not in shares, "it lies between the probabilities"


def task_of(name: str, images: Images, **augment: object):
    data = {"mean": (0.5,) * 3, "std": (0.5,) * 3, "augment": augment}
    model = {"img_size": (8, 8), "in_chans": 3, "num_classes": 3, "patch_size": 4}
    whole = {"task": {"name": name}, "data": data, "model": model, "train": {"batch_size": 8}}
    spec = ExperimentSpec.model_validate_json(json.dumps(whole))
    about: dict[str, Any] = {"mean": (0.5,) * 3, "std": (0.5,) * 3, "data_hash": ""}
    known = DataSet(name="mine", class_names=NAMES, train=images, test=images, **about)
    return task_class(spec)(spec, filled_module(spec, known)), known


@pytest.mark.parametrize("kind", ["mixup", "cutmix"])
def test_labels_of_mixed_images_are_mixed_as_classes_are(kind):
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (16, 3, 8, 8), dtype=torch.uint8, generator=generator)
    images = Images(pixels, torch.arange(16) % 3)
    batches = []
    for name in ("classify", "multilabel"):
        task, data = task_of(name, images, **{kind: 1.0})
        batches.append(next(task.batches(data, 0)))
    for name in ("images", "targets"):
        torch.testing.assert_close(batches[1][name], batches[0][name])
    assert ((batches[1]["targets"] > 0) & (batches[1]["targets"] < 1)).any()


def test_answers_are_the_labels_that_reach_the_chosen_threshold():
    images = Images(torch.zeros(8, 3, 8, 8, dtype=torch.uint8), torch.arange(8) % 3)
    task, _ = task_of("multilabel", images)
    shares = torch.tensor([[0.45, 0.3, 0.6], [0.1, 0.2, 0.3]])
    outputs = {"logits": shares.logit(), "targets": torch.tensor([[1.0, 0, 1], [0, 0, 0]])}
    assert "probability of 0.5" in task.caveat
    for threshold, first in ((0.5, ["red"]), (0.4, ["red", "blue"])):
        rows = task.answers(outputs, NAMES)
        assert [row["labels"] for row in rows] == [first, []]
        assert rows[0]["probabilities"] == pytest.approx({"red": 0.6, "blue": 0.45, "green": 0.3})
        assert [*rows[1]["probabilities"]] == ["red", "green", "blue"], "the likeliest first"
        assert task.measure(outputs)["micro_f1"] == pytest.approx(1 if threshold < 0.5 else 2 / 3)
        task.fitted = task.choose(outputs)
    assert task.fitted["threshold"] == pytest.approx(0.375)
    assert not task.caveat


def test_a_trained_multilabel_run_is_measured_and_answers(fit, colours):
    record = fit("multilabel", "run", {"data.val_split": 20})
    result, run = record.result, record.folder.path
    assert result["test_mean_average_precision"] > 0.9
    stored = np.load(run / "predictions.npz")
    logits, is_right = torch.from_numpy(stored["logits"]), torch.from_numpy(stored["targets"]) > 0
    shares = logits.double().sigmoid()
    micro, macro = f1_scores(shares >= result["threshold"], is_right)
    assert (result["test_micro_f1"], result["test_macro_f1"]) == (micro, macro)
    assert f1_scores(shares >= 0.5, is_right)[0] != micro, "the threshold matters"
    found = document("eval", "run")
    for name in ("mean_average_precision", "micro_f1", "macro_f1"):
        assert found[f"test_{name}"] == pytest.approx(result[f"test_{name}"], abs=1e-6)
    assert not found["notes"]
    names = ["2.png", "5.png", "8.png"]
    rows = document("predict", "run", *(colours / name for name in names))["pictures"]
    wanted = dict(line.split(",")[:2] for line in (colours / "labels.csv").read_text().split())
    has = [{*filter(None, wanted[name].split(";"))} for name in names]
    assert [{*row["labels"]} for row in rows] == has
    for row in rows:
        likely = [n for n, share in row["probabilities"].items() if share >= result["threshold"]]
        assert row["labels"] == likely
        assert {*row["probabilities"]} == {*NAMES}
    stopped = RunDir(Path(shutil.copytree(run, "stopped")))
    (stopped.path / "result.json").unlink()
    stopped.set_status("interrupted", record.step, "stopped", result)
    again = document("predict", "stopped", *(colours / name for name in names))["pictures"]
    assert [row["labels"] for row in again] == [row["labels"] for row in rows]
    logits, targets = vitcli.load_run("run").predictions
    assert (logits.tolist(), targets.tolist()) == (stored["logits"].tolist(), is_right.tolist())


def test_bad_pictures_and_options_lose_no_answer(fit, colours, here):
    fit("multilabel", "run", {"train.epochs": 1})
    assert "note: labels have a probability of 0.5" in str(document("eval", "run")["notes"])
    Path("bad.png").write_text("no picture")
    talk = said(3, "predict", "run", colours / "0.png", "bad.png", colours / "1.png", "--json")
    assert "error: bad.png: not a picture" in talk
    assert "error: bad.png" in said(4, "predict", "run", "bad.png")
    for form, first in (("csv", "file,labels,probabilities,e"), ("jsonl", '{"file": ')):
        code, out, talk = command("predict", "run", colours / "0.png", "bad.png", "--format", form)
        lines = out.splitlines()
        assert "note: labels have a probability of 0.5" in talk
        assert (code, len(lines), lines[0].startswith(first)) == (3, 2 + (form == "csv"), True)
    with pytest.raises(UserError, match="reject: run answers with labels and probabilities"):
        vitcli.load_classifier("run", reject=0.5)
    for option in ("--top=2", "--reject=0.5", "--coverage=0.9"):
        talk = said(2, "predict", "run", colours / "0.png", option)
        assert "answers with labels and probabilities, and has no" in talk
    assert "no one class" in said(2, "eval", "run", "--review")
    assert "--probe learns classes" in said(2, "eval", "run", "--probe", "knn")


@pytest.mark.parametrize(("task", "suffix"), [("multilabel", "jsonl"), ("regress", "csv")])
def test_rows_of_a_file_are_those_of_python_and_are_continued(fit, colours, task, suffix):
    fit(task, "run", {"train.epochs": 1})
    pictures = [str(colours / f"{number}.png") for number in range(3)]
    answers = vitcli.load_classifier("run", device="cpu")(pictures)
    file = Path(f"a.{suffix}")
    words = ("predict", "run", *pictures, "-o", file, "--resume")
    said(0, *words)
    whole = file.read_text()
    if suffix == "jsonl":
        rows = [json.loads(line) for line in whole.splitlines()]
        assert rows == [answer.to_dict() for answer in answers]
    else:
        numbers = [float(line.split(",")[1]) for line in whole.splitlines()[1:]]
        assert numbers == [(answer.answers or {})["target"] for answer in answers]
    file.write_text(whole[:-20])
    said(0, *words)
    kept, whole = whole.splitlines()[:-1], file.read_text()
    assert (whole.splitlines()[:-1], whole.count(pictures[2])) == (kept, 1)
    fit(task, "other", {"train.epochs": 1, "seed": 1})
    assert f"a.{suffix}:" in said(2, "predict", "other", *words[2:])
    assert file.read_text() == whole


def test_the_pictures_of_figures_have_all_their_labels(fit, colours):
    fit("multilabel", "run", {"train.epochs": 1})
    tested = load_trained_run("run")
    with (colours / "labels.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["split"] == "test"]
    labels = {row["labels"].replace(";", ", ") or "no label" for row in rows}
    assert {tested.label(i) for i in range(len(rows))} == labels >= {"no label", "green, red"}
    for figure in (heads_figure(tested), features_figure(tested)):
        names = [name for _, name in figure.draw_axes.args[0]]
        assert names == [tested.label(i) for i in tested.first_of_each_class]


def test_a_map_explains_the_class_that_is_named(fit, colours):
    fit("multilabel", "run", {"train.epochs": 1})
    picture = colours / "0.png"
    for method in ("gradcam", "grad-rollout"):
        words = ("attn-map", "run", picture, "--method", method, "--format", "npz", "-o")
        files = [(f"{method}-{name}.npz", "--class", name) for name in ("red", "blue")]
        one, other = (document(*words, *file)["pictures"][0] for file in files)
        assert (one["about"], other["about"]) == ("red", "blue")
        maps = [np.load(row["file"])["maps"] for row in (one, other)]
        assert not np.array_equal(*maps)
    fit("regress", "number", {"train.epochs": 1})
    words = ("attn-map", "number", picture, "--format", "npz")
    (found,) = document(*words, "--method", "gradcam")["pictures"]
    assert (found["about"], found["class"]) == ("target", None)


@pytest.mark.parametrize("loss", ["squared", "absolute"])
def test_a_trained_regression_is_measured_and_answers_in_its_unit(fit, colours, loss):
    record = fit("regress", "run", {"task.loss": loss, "train.epochs": 8, "optim.lr": 0.01})
    result, run = record.result, record.folder.path
    stored = np.load(run / "predictions.npz")
    error = stored["predictions"].astype(np.float64) - stored["targets"]
    spread = stored["targets"].std(dtype=np.float64)
    assert result["test_absolute_error"] == pytest.approx(np.abs(error).mean())
    assert result["test_r2"] == pytest.approx(1 - (error**2).mean() / spread**2)
    lines = [line.split(",") for line in (colours / "target.csv").read_text().split()]
    trained = np.std([float(number) for _, number, split in lines if split == "train"])
    measured = (error / trained) ** 2 if loss == "squared" else np.abs(error / trained)
    assert result["test_loss"] == pytest.approx(measured.mean(), rel=1e-4)
    assert result["test_r2"] > 0.8
    numbers = vitcli.load_run("run").predictions
    assert numbers.predictions.tolist() == stored["predictions"].tolist()
    assert numbers.targets.tolist() == stored["targets"].tolist()
    of_images = read_per_image(run / "predictions.npz", record.task)
    assert of_images
    assert of_images.mean == pytest.approx(result["test_absolute_error"])
    found = document("eval", "run")
    assert found["test_absolute_error"] == pytest.approx(result["test_absolute_error"], rel=1e-5)
    (row,) = document("predict", "run", colours / "2.png")["pictures"]
    number = next(float(number) for name, number, _ in lines if name == "2.png")
    place = np.abs(stored["targets"] - number).argmin()
    assert row["target"] == pytest.approx(stored["predictions"][place], abs=0.05)


def test_a_change_of_the_unit_changes_only_the_unit(fit, colours, here):
    first = fit("regress", "first", {"train.epochs": 3})
    rows = [line.split(",") for line in (colours / "target.csv").read_text().split()]
    for row in rows[1:]:
        row[1] = str(1024 * float(row[1]) - 4096)
        row[0] = str(colours / row[0])
    (colours / "other.csv").write_text("\n".join(map(",".join, rows)))
    changes = {"train.epochs": 3, "data.name": f"csv:{colours / 'other.csv'}"}
    other = fit("regress", "other", changes)
    for name in ("absolute_error", "rmse"):
        wanted = pytest.approx(1024 * first.result[f"test_{name}"], rel=1e-3)
        assert other.result[f"test_{name}"] == wanted
    assert other.result["test_r2"] == pytest.approx(first.result["test_r2"], abs=1e-3)


def test_a_regression_without_epochs_answers_as_the_run_that_it_starts_from(fit, colours, here):
    changes = {"train.epochs": 3, "data.mean": [0.5] * 3, "data.std": [0.2] * 3}
    first = fit("regress", "run", changes)
    head, *rows = (line.split(",") for line in (colours / "target.csv").read_text().split())
    kept = [row for row in rows if row[2] == "test" or float(row[1]) < 1800]
    (colours / "few.csv").write_text("\n".join(map(",".join, [head, *kept])))
    changes |= {"train.epochs": 0, "train.init": "run", "data.name": f"csv:{colours / 'few.csv'}"}
    again = fit("regress", "again", changes)
    assert again.num_train < first.num_train
    assert again.test_score == pytest.approx(first.test_score, rel=1e-4)


@pytest.mark.parametrize(
    ("task", "changes", "wanted"),
    [
        ("regress", {"data.augment.mixup": 0.5}, "data.augment.mixup: no number"),
        ("regress", {"data.augment.cutmix": 0.5}, "data.augment.cutmix: no number"),
        ("multilabel", {"train.class_balance": "weights"}, "train.class_balance: "),
    ],
)
def test_what_a_task_cannot_learn_with_is_refused(fit, task, changes, wanted):
    with pytest.raises(ConfigError, match=wanted):
        fit(task, "run", changes)


def test_targets_that_say_nothing_are_refused():
    pixels = torch.zeros(16, 3, 8, 8, dtype=torch.uint8)
    equal = {"target": 1e6 + torch.rand(16, 1)}
    with pytest.raises(ConfigError, match="targets of mine are all about 1e\\+06"):
        task_of("regress", Images(pixels, torch.zeros(16).long(), equal))
    none = Images(pixels, torch.zeros(16).long(), {"label_set": torch.zeros(16, 3)})
    task, data = task_of("multilabel", none)
    with pytest.raises(ValueError, match="no test image of mine has a label"):
        task.check_data(data)
