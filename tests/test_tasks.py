"""Every task of the table, and that of tests/denoising.py, can do what classification can."""

import contextlib
import json
import math
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from shutil import ignore_patterns

import pytest
import torch
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

from tests.figure_checks import faults
from tests.own_code import vitcli
from tests.runner.train.conftest import stops_after
from tests.same_run import assert_same_run
from tests.task_table import ADDED, NAMES, STEPS, TinyTask, row_of
from vitcli.core.data.batches import Batch
from vitcli.core.inspect.cost import count_parameters
from vitcli.core.objectives.objective import task_class
from vitcli.core.objectives.pictures import Grid, Table
from vitcli.core.spec import TASKS
from vitcli.core.spec.task import DEFAULT_TASK
from vitcli.runner.attn_map.explain import PAGES
from vitcli.runner.attn_map.training_pictures import fixed_index
from vitcli.runner.data.load import load_data
from vitcli.runner.errors import ConfigError
from vitcli.runner.evaluate.trained_run import NoFigureError, load_trained_run
from vitcli.runner.evaluate.weights import encoder_weights, load_model, load_module
from vitcli.runner.experiment.build import new_module
from vitcli.runner.experiment.config import load_experiment
from vitcli.runner.experiment.resolve import resolve
from vitcli.runner.run.folder import RunDir
from vitcli.runner.run.record import read_record
from vitcli.runner.study.definition import load_study
from vitcli.runner.train.prepare import Request
from vitcli.runner.train.train import train
from vitcli.runner.visualize.picture_figures import picture_figures
from vitcli.runner.visualize.render import FIGURES, INTERACTIVE
from vitcli.runner.visualize.training_figures import curves_figure


@pytest.fixture(params=NAMES, scope="module")
def name(request) -> str:
    """Each task in turn. The scope lets all tests of a task follow each other in a process."""
    return str(request.param)


@pytest.fixture
def added(monkeypatch) -> None:
    monkeypatch.setitem(TASKS, ADDED, row_of(ADDED))


@pytest.fixture
def task(name, here, added, tmp_path_factory) -> TinyTask:
    place = tmp_path_factory.getbasetemp() / "tasks"
    place.mkdir(exist_ok=True)
    return TinyTask(name, place)


def objective(tiny: TinyTask, changes: dict | None = None):
    spec = tiny.experiment(changes).spec
    data = load_data(spec.data)
    spec = resolve(spec, data)
    return task_class(spec)(spec, new_module(spec)), data


def equal(one: list[Batch], other: list[Batch]) -> bool:
    return len(one) == len(other) and all(
        a.keys() == b.keys() and all(a[name].equal(b[name]) for name in a)
        for a, b in zip(one, other, strict=True)
    )


def test_a_killed_training_ends_with_the_same_bits(task):
    calm = RunDir(Path(task.finished("calm")))
    with stops_after(STEPS + 1):
        task.train("stopped")
    again = train(task.experiment(), Request(output=Path("stopped"), resume=True))
    assert_same_run(calm, again.folder, measures=(task.measure,))


OTHER = {
    **{"train.accumulate": 2, "train.grad_checkpointing": True, "train.precision": "bf16"},
    **{"model.pool": "cls", "data.val_split": 8, "optim.name": "muon", "train.ema_decay": None},
}


def test_it_trains_with_other_settings(task):
    accepted = task.accepted(OTHER) | {"train.epochs": 1}
    run = task.train("run", accepted)
    split = "val" if "data.val_split" in accepted else "test"
    names = [f"train_{name}" for name in task.row.reports]
    names += [f"{split}_{name}" for name in task.row.recorded]
    assert all(math.isfinite(record[name]) for record in read_record(run).metrics for name in names)
    assert math.isfinite(read_record(run).result[task.measure])


def test_its_batches_depend_on_seed_epoch_and_image_only(task):
    made, data = objective(task)
    whole = list(made.batches(data, 1))
    torch.manual_seed(123)
    assert equal(whole, list(made.batches(data, 1))), "no draw is from torch's own generator"
    rest = list(made.batches(data, 1, first_batch=2))
    assert equal(whole[2:], rest), "a resumed epoch continues with the same batches"
    assert len(whole) == STEPS
    assert not equal(whole, list(made.batches(data, 0)))
    for batch in whole:
        assert "images" in batch
        assert {len(value) for value in batch.values()} == {16}, "accumulation splits this axis"
    other, _ = objective(task, {"seed": 1})
    assert not equal(whole, list(other.batches(data, 1)))


def test_its_losses_measures_and_features_are_those_of_its_row_and_encoder(task):
    made, data = objective(task)
    made.module.train()
    found = made.losses(next(made.batches(data, 0)))
    assert set(found) == set(task.row.reports)
    assert all(value.ndim == 0 for value in found.values())
    assert found["loss"].requires_grad
    outputs = made.outputs(made.module, data.test)
    assert {len(value) for value in outputs.values()} == {len(data.test)}
    measured = made.measure(outputs)
    assert set(task.row.numbers) <= set(measured)
    assert made.module.training, "the mode is restored"
    made.module.eval()
    again = made.measure(made.outputs(made.module, data.test))
    assert again == measured, "an evaluation has no dropout and draws no new numbers"
    made.module.train()
    features = made.features(made.module, data.test)
    assert made.module.training, "the mode is restored"
    assert (features.dtype, features.shape[0]) == (torch.float32, len(data.test))
    assert features.equal(made.features(made.module.eval(), data.test)), "without dropout"
    parts = [made.features(made.module, data.test[part]) for part in (slice(3), slice(3, None))]
    torch.testing.assert_close(torch.cat(parts), features)


def test_its_run_is_measured_verified_and_listed(task):
    run = task.finished("runs/mine")
    score = json.loads(Path(run, "result.json").read_text())[task.measure]
    assert json.loads(vitcli(f"eval {run} --json"))[task.measure] == pytest.approx(score, abs=1e-6)
    assert "damaged" not in vitcli(f"runs verify {run}")
    assert task.row.headline.text(score) in vitcli("runs ls")
    module = load_module(RunDir(Path(run)), RunDir(Path(run)).spec())
    estimate = json.loads(vitcli(f"train {task.path} --dry-run --json --device cpu"))
    assert count_parameters(module) == estimate["parameters"]
    has_classes = "target" not in task.experiment().spec.task.extras
    probed = vitcli(f"eval {run} --probe knn --labels 20 --json", 0 if has_classes else 2)
    if not has_classes:
        return
    found = json.loads(probed)
    assert (found["num_labels"], found["num_images"]) == (20, 12)


def test_pictures_are_looked_into(task):
    run = task.finished("run")
    shutil.copytree(task.pictures / "test" / "lying", "folder", ignore=ignore_patterns("[2-9]*"))
    (found,) = json.loads(vitcli(f"attn-map {run} folder/0.png --format npz --json"))["pictures"]
    assert Path(found["file"]).stat().st_size > 100
    assert (found["class"] is not None) == task.row.classifies
    vitcli(f"attn-map {run} folder --method rollout --format npz -o maps")
    assert {path.name for path in Path("maps").iterdir()} == {"0-rollout.npz", "1-rollout.npz"}
    vitcli(f"predict {run} folder/0.png", 0 if task.row.classifies or task.row.answers else 2)


@pytest.mark.slow
@pytest.mark.ci
def test_pictures_are_drawn_in_every_form(task):
    run, picture = task.finished("run"), task.pictures / "test" / "lying" / "0.png"
    for method in ("head", "raw"):
        vitcli(f"attn-map {run} {picture} --method {method} -o {method}.png")
    if "explorer" in PAGES:
        vitcli(f"attn-map {run} {picture} --format html -o page.html")
    (drawn,) = json.loads(vitcli(f"visualize {run} --num-images 4 --json"))["runs"]
    expected = {"curves", "heads", "filters", "embeddings"} & {*FIGURES}
    assert expected <= drawn["files"].keys()
    assert all(Path(file).stat().st_size for file in drawn["files"].values())


def test_its_pictures_draw_no_random_numbers_and_are_on_the_page(task):
    made, data = objective(task)
    index, module = fixed_index(data.test), made.module.eval()
    state = torch.get_rng_state()
    found, again = (made.pictures(module, data, index) for _ in range(2))
    assert torch.get_rng_state().equal(state), "a training does not depend on its pictures"
    assert found.keys() == again.keys()
    assert not found.keys() & {*FIGURES, *INTERACTIVE, "pictures"}
    for name, picture in found.items():
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name), "a file has this name"
        assert (bool(picture.title), picture.caption[-1]) == (True, ".")
        if isinstance(picture, Table):
            assert {len(row) for row in picture.rows} == {len(picture.head)}
            assert picture == again[name]
            continue
        rows, columns = picture.cells.shape[:2]
        assert len(picture.columns) == columns
        assert len(picture.row_names) in (0, rows)
        assert picture.cells.equal(again[name].cells)
        if isinstance(picture, Grid):
            assert (picture.cells.dtype, picture.cells.shape[2]) == (torch.uint8, 3)
    run = task.finished("run")
    (drawn,) = json.loads(vitcli(f"visualize {run} --what pictures --json"))["runs"]
    assert drawn["files"].keys() - {"numbers"} == found.keys()
    assert (drawn["skipped"].keys() == {"pictures"}) == (not found)
    page = Path("figures/index.html").read_text()
    assert page.count('src="data:image/png') == len(found)
    assert task.row.headline.text(drawn[task.measure]) in page


@pytest.mark.ci
def test_its_pictures_are_legible(task):
    run = RunDir(Path(task.finished("run")))
    options = {"num_images": 4, "device": "cpu", "data_dir": None, "offline": True}
    tested = load_trained_run(run, **options, on_message=print)
    assert faults(curves_figure(tested).draw) == []
    with contextlib.suppress(NoFigureError):
        for name, figure in picture_figures(tested).items():
            assert faults(figure.draw) == [], name


def test_tensorboard_has_its_numbers_and_pictures(task):
    (file,) = Path(task.finished("run")).glob("events.out.tfevents.*")
    tags = {v.tag for e in LegacyEventFileLoader(str(file)).Load() for v in e.summary.value}
    made, data = objective(task)
    found = made.pictures(made.module.eval(), data, fixed_index(data.test))
    assert {f"pictures/{name}" for name, p in found.items() if not isinstance(p, Table)} <= tags
    assert {f"{name}/train" for name in task.row.reports} <= tags
    assert {f"{name}/test" for name in task.row.recorded} <= tags
    assert "attention" in tags


def test_a_classification_starts_from_its_encoder(task):
    run = task.finished("run")
    vitcli(
        f"train {task.path} -s 'task={{name: classify}}' --data {task.data} --init {run}"
        " --epochs 0 -o next"
    )
    given, taken = encoder_weights(RunDir(Path(run))), load_model("next").state_dict()
    assert taken.keys() == given.keys() == load_model(run).state_dict().keys()
    backbone = [name for name in given if not name.startswith("head.")]
    assert len(backbone) > 10
    assert all(torch.equal(taken[name], given[name]) for name in backbone)


@pytest.mark.slow
@pytest.mark.ci
def test_it_is_ablated(task, monkeypatch, request):
    """With workers, which are other processes, where another process must learn the row."""
    if task.name == ADDED:
        plugin = Path("plugin/sitecustomize.py")
        plugin.parent.mkdir()
        plugin.write_text("from tests.denoising import add_rows\n\nadd_rows()\n")
        paths = map(str, (plugin.parent.resolve(), Path(__file__).parents[1]))
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths), prepend=os.pathsep)
    else:
        request.getfixturevalue("without_workers")
        request.getfixturevalue("sketched")
    Path("mine.yaml").write_text(
        "question: does the FFN help?\n"
        f"base: {task.path}\nseeds: [0]\ntrain: {{epochs: 1}}\n"
        "variants: {base: {}, no-ffn: {model.ffn: none}}\n"
    )
    assert f"| {task.row.headline.title} |" in vitcli("ablate mine.yaml -j 1 --format md")
    document = json.loads(vitcli("ablate mine.yaml --table-only --format json"))
    assert len(document["statistics"]) == 2
    for numbers in document["statistics"]:
        assert math.isfinite(numbers[f"{task.row.headline.name}_mean"])
    assert document.get("task", DEFAULT_TASK) == task.name


@pytest.mark.usefixtures("added")
def test_reports_of_a_task_show_its_error_and_no_accuracy(tiny):
    errors = {}
    for name, epochs in (("long", 2), ("short", 1)):
        vitcli(f"train {tiny} -s task.name={ADDED} --epochs {epochs} -o runs/{name}")
        result = json.loads(Path(f"runs/{name}/result.json").read_text())
        errors[name] = result["test_error"]
    best = min(errors, key=lambda name: errors[name])
    assert f"{errors[best]:.4f}" in vitcli("runs ls")
    (listed,) = json.loads(vitcli("runs ls --top 1 --json"))["runs"]
    assert (listed["name"], listed["metric"]) == (best, "error")
    assert listed["test_score"] == errors[best]
    vitcli("runs diff long short")
    assert "class" not in vitcli("eval long --format md")
    of_classes = {"confusion", "mistakes", "logit-lens", "faithfulness", "explorer"}
    of_classes &= {*FIGURES, *INTERACTIVE}
    found = json.loads(vitcli(f"visualize long --what curves,{','.join(of_classes)} --json"))
    (drawn,) = found["runs"]
    assert drawn["test_error"] == errors["long"]
    assert drawn["skipped"].keys() == of_classes
    assert f"error {errors['long']:.4f}" in Path("figures/index.html").read_text()
    vitcli(f"train {tiny} --epochs 1 -o runs/other")
    vitcli("runs ls")
    vitcli("runs ls --top 1", 2)


@pytest.mark.usefixtures("added")
def test_the_best_checkpoint_of_an_error_has_the_smallest(tiny):
    changes = {"task.name": ADDED, "data.val_split": 16, "train.ema_decay": None}
    done = train(load_experiment(str(tiny), changes), Request(output=Path("run")))
    errors = {record["val_error"]: record["step"] for record in read_record(done.folder).metrics}
    assert done.result["best_val_error"] == min(errors)
    assert done.result["best_val_step"] == errors[min(errors)]


@pytest.mark.usefixtures("added")
def test_a_study_has_one_metric_and_takes_no_reference_in_percent(tiny):
    variants = "variants: {base: {}, other: {%s}}\n"
    head = f"base: {tiny}\nseeds: [0]\n"
    Path("mine.yaml").write_text(
        f"{head}task: {{name: {ADDED}}}\n{variants % 'model.ffn: none'}"
        "reference: {source: a paper, rows: {base: {accuracy: 93.1}}}\n"
    )
    with pytest.raises(ConfigError, match="'denoise' measures error; remove the reference"):
        load_study("mine.yaml")
    Path("mine.yaml").write_text(head + variants % f"task.name: {ADDED}")
    with pytest.raises(ConfigError, match="task measures error, that of 'base' accuracy, %"):
        load_study("./mine.yaml")
    with pytest.raises(ValueError, match="contain 'loss'"):
        replace(row_of(ADDED), reports=("error",))
    with pytest.raises(ValueError, match="its own 'grad_norm'; rename"):
        replace(row_of(ADDED), reports=("loss", "grad_norm"))
