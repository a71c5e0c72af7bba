"""`vitcli eval --probe`: what the features of a frozen encoder know."""

import csv
import json
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch.testing import assert_close
from typer.testing import CliRunner

from tests.core.specs import REQUIRED
from vitcli.cli.main import app
from vitcli.core.data.source import Images
from vitcli.core.metrics.knn import knn_logits
from vitcli.runner.data.load import load_data
from vitcli.runner.errors import InputError
from vitcli.runner.evaluate.probe import PROBES, probe_run
from vitcli.runner.evaluate.weights import load_model
from vitcli.runner.experiment.build import new_module
from vitcli.runner.experiment.config import load_experiment
from vitcli.runner.run.folder import RunDir
from vitcli.runner.train.start import Request, start

PROBES_KNN = PROBES["knn"]


@pytest.fixture
def run(copy_of_run) -> str:
    return str(copy_of_run(Path("run"), {"train.epochs": 1}))


def vitcli(*words: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["eval", *map(str, words)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


def pooled(model: torch.nn.Module, images: Images, data) -> torch.Tensor:
    with torch.no_grad():
        return model.eval().features(data.normalize(images.pixels))


@pytest.mark.parametrize("labels", [None, 12])
def test_the_probe_reads_the_features_of_the_trained_and_the_initial_encoder(
    run, monkeypatch, labels
):
    seen = []

    def spy(*values):
        seen.append(values)
        return PROBES_KNN(*values)

    monkeypatch.setitem(PROBES, "knn", spy)
    found = probe_run(run, "knn", labels=labels)
    spec = RunDir(Path(run)).spec()
    data = load_data(spec.data.replace(labels=labels))
    models = load_model(run), new_module(spec)
    for model, values, score in zip(models, seen, (found.trained, found.untrained), strict=True):
        train, test = pooled(model, data.train, data), pooled(model, data.test, data)
        assert_close(values[0], train)
        assert_close(values[2], test)
        assert values[1].equal(data.train.labels)
        hits = knn_logits(train, data.train.labels, test, 2).argmax(1) == data.test.labels
        assert score.accuracy == pytest.approx(hits.double().mean().item())
    assert not torch.allclose(seen[0][0], seen[1][0], atol=0.1), "the training moved the features"
    assert found.num_labels == len(data.train) == (labels or 80)
    assert (found.num_images, found.num_features) == (24, 16)


@pytest.mark.parametrize("kind", PROBES)
def test_every_format_has_the_same_numbers(run, kind):
    found = json.loads(vitcli(run, "--probe", kind, "--json")[1])
    percent = f"{100 * found['accuracy']:.2f} %"
    low, high = (f"{100 * bound:.2f} %" for bound in found["accuracy_interval_95"])
    for form in ("text", "md"):
        code, out, _ = vitcli(run, "--probe", kind, "--format", form)
        assert code == 0
        assert f"{percent} of 24 test images" in out
        assert f"{low} to {high}" in out
        assert "random-init encoder" in out
        assert "80 training images" in out
        assert ("L2 strength" in out) == (kind == "linear")
    trained, initial = csv.DictReader(
        vitcli(run, "--probe", kind, "--format", "csv")[1].split("\n")
    )
    assert float(trained["accuracy"]) == found["accuracy"]
    assert (initial["encoder"], initial["labels"]) == ("random-init", "80")


def test_each_stage_has_a_line_in_a_log(run):
    lines = vitcli(run, "--probe", "linear")[2].splitlines()
    assert sum("features of 104 images" in line for line in lines) == 2
    assert sum("linear probe" in line for line in lines) == 2


def test_the_progress_of_each_stage_is_told(run):
    told = []
    probe_run(run, "linear", on_stage=lambda *values: told.append(values))
    by_stage = {name: [parts for each, *parts in told if each == name] for name, *_ in told}
    assert len(by_stage) == 4
    for name, parts in by_stage.items():
        assert parts == sorted(parts, key=lambda each: each[0])
        assert ("features" in name) <= (parts[-1] == [104, 104])


def test_with_few_labels_the_strength_is_said_not_to_be_chosen(run):
    assert "chosen on held-out training images" in vitcli(run, "--probe", "linear")[1]
    assert "too few labels" in vitcli(run, "--probe", "linear", "--labels", 6)[1]


def test_the_validation_images_can_be_measured(copy_of_run):
    copy_of_run(Path("run"), {"train.epochs": 1, "data.val_split": 10})
    found = json.loads(vitcli("run", "--probe", "knn", "--split", "val", "--json")[1])
    assert (found["num_images"], found["num_labels"], found["split"]) == (10, 70, "val")


def test_an_accuracy_can_be_demanded(run):
    assert vitcli(run, "--probe", "linear", "--min-accuracy", 0)[0] == 0
    code, _, talk = vitcli(run, "--probe", "linear", "--labels", 2, "--min-accuracy", 1)
    reached = probe_run(run, "linear", labels=2).trained.accuracy
    assert (code, "below --min-accuracy" in talk) == ((0, False) if reached == 1 else (6, True))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--labels", 5], "add --probe linear"),
        (["--probe", "knn", "--labels", 1], "--labels 1 must be at least 2"),
        (["--probe", "knn", "--labels", 81], "at most 80"),
        (["--probe", "knn", "--split", "train"], "--split test or val"),
        (["--probe", "knn", "--split", "val"], "without a validation split"),
        (["--probe", "knn", "--tta"], "does not take --tta"),
        (["--probe", "knn", "--predictions", "x.npz"], "does not take --predictions"),
    ],
    ids=str,
)
def test_a_mistake_is_one_line_that_says_what_to_type(run, words, told):
    code, out, talk = vitcli(run, *words)
    assert (code, out) == (2, "")
    (line,) = [line for line in talk.splitlines() if line.startswith("error:")]
    assert told in line
    assert not Path("x.npz").exists()


@pytest.mark.parametrize("family", ["resnet18", "swin", "coatnet", "pit"])
def test_every_family_has_features(pictures, family):
    model = {"patch_size": 2, "embed_dim": 12, "num_heads": 3, "mlp_ratio": 1.0}
    small = {} if family == "resnet18" else model | REQUIRED[family]
    fields = {f"model.{name}": value for name, value in ({"family": family} | small).items()}
    Path("small.yaml").write_text(
        f'data: {{name: "imagefolder:{pictures}"}}\ntrain: {{epochs: 0, batch_size: 8}}\n'
    )
    changes = {k: list(v) if isinstance(v, tuple) else v for k, v in fields.items()}
    start(load_experiment("./small.yaml", changes), Request(output=Path("run")))
    found = probe_run("run", "linear")
    assert found.num_features == load_model("run").num_features
    assert found.trained == found.untrained, "no step was taken"
    assert found.trained.accuracy > 0.8, "the pictures are dark and bright"


def test_imported_weights_have_features(tiny):
    import timm  # takes seconds

    names = {"img_size": 8, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2}
    model = timm.models.VisionTransformer(**names, mlp_ratio=2.0, num_classes=2)
    safetensors.torch.save_file(model.state_dict(), "vit.safetensors")
    words = ["import", "vit.safetensors", "-e", str(tiny), "-o", "mine"]
    words += ["-s", "model.pos_embed_prefix=true", "-s", "model.pool=cls"]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert 0 <= probe_run("mine", "knn").trained.accuracy <= 1


@pytest.mark.data
@pytest.mark.usefixtures("real_places")
def test_the_bundled_model_knows_more_than_its_initial_weights():
    try:
        found = probe_run("cifar10-pocket", "linear", labels=100, limit_batches=1, offline=True)
    except InputError as error:
        pytest.skip(f"no CIFAR-10 on this machine: {error}")
    assert found.num_labels == 100
    assert found.trained.interval[0] > found.untrained.interval[1] + 0.3
