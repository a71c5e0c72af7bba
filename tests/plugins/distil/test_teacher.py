"""A run that teaches: its weights belong to the configuration, and only a training needs it."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tests.cli import commands
from tests.cli.commands import document, printed, said
from tests.runner.train.conftest import stops_after
from tests.same_run import assert_same_run
from tests.task_table import TinyTask
from vitcli.runner.errors import ConfigError
from vitcli.runner.evaluate.teacher import with_teacher
from vitcli.runner.evaluate.weights import encoder_weights, load_model, run_weights, weights_sha256
from vitcli.runner.experiment.config import Experiment, config_hash
from vitcli.runner.experiment.diff import changed_fields, differences
from vitcli.runner.run.folder import RunDir, find_run
from vitcli.runner.run.record import read_record
from vitcli.runner.study.definition import load_study
from vitcli.runner.train.flops import training_flops, whole_training_flops
from vitcli.runner.train.prepare import Request, prepare
from vitcli.runner.train.train import train as run_training

FEW = {"train.limit_batches": 1, "train.epochs": 1}
NAMED: dict[str, Any] = FEW | {"task.teacher": "teacher"}


@pytest.fixture
def tiny(here, tmp_path_factory) -> TinyTask:
    place = tmp_path_factory.getbasetemp() / "tasks"
    place.mkdir(exist_ok=True)
    task = TinyTask("distil", place)
    shutil.copytree(place / "teacher", "runs/teacher")
    return task


def change_teacher(tiny: TinyTask) -> None:
    shutil.rmtree("runs/teacher")
    TinyTask("classify", tiny.place).finished("runs/teacher", FEW)


@pytest.mark.parametrize("command", [(), ("--dry-run",)])
def test_a_missing_teacher_is_refused_with_what_to_type(tiny, command):
    each = "task.teacher=quickstart/train/seed{seed}"
    text = said(2, "train", tiny.path, "-s", each, "--seed", 7, *command)
    assert "vitcli train quickstart --seed 7" in text
    said(2, "train", tiny.path, "-s", "task.teacher=3", *command)
    said(2, "train", "quickstart", "-s", "task.name=distil", *command)


def test_a_teacher_whose_last_checkpoint_is_gone_is_refused_with_what_to_type(tiny):
    status = Path("runs/teacher/status.json")
    status.write_text(json.dumps(json.loads(status.read_text()) | {"step": 99}))
    words = ("train", tiny.path, "-s", "task.teacher=teacher", "-o", "taught")
    commands.typed(said(2, *words).partition("train it again: vitcli ")[2])
    said(0, *words)


def test_a_changed_teacher_is_refused_in_a_new_and_in_a_resumed_training(tiny):
    experiment = tiny.experiment(NAMED)
    taught = with_teacher(experiment.spec)
    run_training(experiment, Request(output=Path("mine")))
    Path("mine/status.json").write_text('{"state": "interrupted", "step": 1}')
    change_teacher(tiny)
    assert "weights of teacher have changed" in said(2, "train", "--resume", "mine")
    with pytest.raises(ConfigError, match="have changed"):
        run_training(replace(experiment, spec=taught), Request(output=Path("new")))
    assert with_teacher(experiment.spec) != taught


def test_the_hash_of_a_configuration_is_that_of_the_teachers_name(tiny):
    asked = tiny.experiment(NAMED).spec
    taught = with_teacher(asked)
    assert differences(asked, taught).keys() == {"task.teacher.sha256"}
    assert changed_fields(asked) == changed_fields(taught)
    assert config_hash(asked) == config_hash(taught), "a machine without the teacher knows it, too"
    shutil.copytree("runs/teacher", "elsewhere")
    other = tiny.experiment(FEW | {"task.teacher": "elsewhere"}).spec
    assert config_hash(with_teacher(other)) != config_hash(asked)


def test_a_pre_training_with_a_teacher_is_refused(tiny):
    changes = {"pretrain": {"task": {"name": "distil", "teacher": "teacher"}}}
    spec = TinyTask("classify", tiny.place).experiment(changes).spec
    with pytest.raises(ConfigError, match=r"pretrain\.task: .*--init RUN"):
        with_teacher(spec)


def test_a_finished_student_is_used_without_its_teacher_but_its_token_cannot_teach(tiny):
    run = tiny.train("runs/mine", NAMED | {"task.kind": "token", "model.reg_tokens": 1})
    with pytest.raises(ConfigError, match=r"task\.teacher: mine predicts with a distillation"):
        with_teacher(tiny.experiment(FEW | {"task.teacher": "mine"}).spec)
    shutil.rmtree("runs/teacher")
    assert "teacher" not in " ".join(run_weights(run))
    picture = tiny.pictures / "test" / "lying" / "0.png"
    printed("eval", "mine")
    printed("attn-map", "mine", picture, "--format", "npz", "-o", "map.npz")
    printed("predict", "mine", picture)
    for form in ("safetensors", "pt2"):
        printed("export", "mine", "--format", form, "-o", f"mine.{form}")
    words = ("--init", "mine", "--epochs", "0", "-o", "plain", "-s", "task={name: classify}")
    printed("train", tiny.path, *words, "-s", "model.reg_tokens=1")
    sizes = [tensor.numel() for tensor in load_file("mine.safetensors").values()]
    assert sum(sizes) == sum(each.numel() for each in load_model("mine").state_dict().values())


def test_the_costs_of_a_teacher_are_counted_and_said_apart(tiny):
    typed = [word for name, value in NAMED.items() for word in ("-s", f"{name}={value}")]
    found = document("train", tiny.path, *typed, "--dry-run")
    each = found["teacher_flops_per_image"]
    images = found["config"]["train"]["batch_size"]
    assert each == found["forward_flops_per_image"] > 0, "both have the same architecture"
    run = tiny.train("mine", NAMED)
    result, teacher = read_record(run).result, read_record(RunDir(Path("runs/teacher"))).result
    plain = read_record(Path(TinyTask("classify", tiny.place).finished("plain", FEW))).result
    assert result["teacher_flops"] == each * images
    assert result["train_flops"] == plain["train_flops"] + each * images == found["train_flops"]
    assert result["teacher_train_flops"] == teacher["train_flops"]
    spec = with_teacher(tiny.experiment(NAMED).spec)
    assert whole_training_flops(spec) - training_flops(spec) == teacher["train_flops"] > 0
    assert read_record(run).meta["teacher"]["run"] == "teacher"


def test_labelled_copies_count_once_and_a_resumed_run_labels_them_as_before(tiny):
    fields = {"train.epochs": 5, "data.augment.copies": 4, "data.augment.flip": "random"}
    fields |= {"train.batch_size": 25}  # an epoch is one step, and leaves 23 images out
    experiment = tiny.experiment(fields | {"task.teacher": "teacher"})
    calm = run_training(experiment, Request(output=Path("calm"))).folder
    result, images, labelled = read_record(calm).result, 5 * 25, 4 * 48
    each = result["forward_flops"]  # teacher and student have the same architecture
    assert result["teacher_flops"] == labelled * each
    assert abs(result["train_flops"] - (3 * images + labelled) * each) < 0.3 * images * each
    for count in (2, 4):
        stopped = Path(f"stopped-{count}")
        with stops_after(count):
            run_training(experiment, Request(output=stopped))
        assert_same_run(calm, run_training(experiment, Request(output=stopped, resume=True)).folder)


def test_a_study_trains_with_and_without_a_teacher(tiny, without_workers, sketched):
    base = json.loads(tiny.path.read_text())
    base.pop("task")
    base["train"] |= {"limit_batches": 1, "epochs": 1}
    taught = {"task": {"name": "distil", "teacher": "teacher"}}
    variants = {"scratch": {}, "taught": taught, "harder": {**taught, "task.temperature": 8.0}}
    Path("both.yaml").write_text(json.dumps(base | {"variants": variants, "seeds": [0]}))
    printed("ablate", "both.yaml", "-j", 1)
    trials = load_study("both.yaml").trials()
    assert len({trial.config_hash for trial in trials}) == 3
    assert "3 finished" in said(0, "ablate", "both.yaml", "-j", 1, "--dry-run"), "as planned"
    shutil.rmtree("runs/teacher")
    words = ("ablate", "both.yaml", "-j", 1)
    assert "3 finished" in printed(*words, "--status"), "a finished student needs no teacher"
    assert "task.teacher: no run is called 'teacher'" in said(2, *words, "--seeds", 2)


def taught_study(tiny: TinyTask, teacher: str) -> tuple[object, ...]:
    base = json.loads(tiny.path.read_text())
    base["task"]["teacher"] = teacher
    base["train"] |= {"limit_batches": 1, "epochs": 1}
    Path("experiments").mkdir()
    Path("experiments/own.yaml").write_text(json.dumps(base))
    Path("own.yaml").write_text(json.dumps(base | {"variants": {"taught": {}}, "seeds": [0, 1]}))
    return ("ablate", "own.yaml", "-j", 1, "--save", "saved")


def losses(document: dict) -> list[float]:
    return [trial["test_loss"] for trial in document["rows"][0]["trials"]]


def test_each_seed_of_a_study_has_its_teacher_and_saved_trials_need_none(
    tiny, without_workers, sketched
):
    teacher = TinyTask("classify", tiny.place)
    for seed in (0, 1):
        teacher.finished(f"runs/wise/train/seed{seed}", FEW | {"seed": seed})
    words = taught_study(tiny, "wise/train/seed{seed}")
    first = document(*words)
    for seed in (0, 1):
        trial = RunDir(Path(f"runs/own/taught/seed{seed}"))
        own = weights_sha256(encoder_weights(find_run(f"wise/train/seed{seed}")))
        assert trial.spec().task.teacher.sha256 == read_record(trial).meta["teacher_sha256"] == own
        assert read_record(trial).meta["teacher"]["run"] == f"wise/train/seed{seed}"
    for name in ("own", "wise/train/seed1"):
        shutil.rmtree(f"runs/{name}")
    assert losses(document(*words)) == losses(first)
    teacher.finished("runs/wise/train/seed1", FEW | {"seed": 2})
    assert "with other weights of wise/train/seed1" in said(3, *words, "--table-only")


def test_trials_of_two_teachers_of_one_name_are_not_mixed(tiny, without_workers, sketched):
    words = taught_study(tiny, "teacher")
    first = document(*words)
    change_teacher(tiny)
    assert "with other weights of teacher" in said(3, *words, "--table-only")
    second = document(*words, "--seeds", 1)
    shutil.rmtree("runs/teacher")
    assert losses(document(*words, "--seeds", 1, "--table-only")) == losses(second)
    shutil.rmtree("runs/own")
    assert "another trial used other weights of teacher" in said(3, *words, "--table-only")
    assert losses(document(*words, "--seeds", 1, "--table-only")) == losses(second), "the newer one"
    assert losses(first)[0] != losses(second)[0]


def told(experiment: Experiment) -> str:
    notes: list[str] = []
    prepare(experiment, Request(output=Path("new"), on_message=notes.append))
    return "\n".join(notes)


@pytest.mark.parametrize("source", ["task.teacher", "train.init"])
def test_a_source_that_learned_from_images_that_are_measured_is_told(tiny, source):
    plain, val, folds = TinyTask("classify", tiny.place), {"data.val_split": 8}, {"data.folds": 3}
    own = tiny if source == "task.teacher" else plain
    sources = {"whole": {}, "split": val, "fold": folds}
    if source == "train.init":  # a teacher knows the same classes
        sources["other"] = {"data.name": "shapes"}
    for name, changes in sources.items():
        plain.finished(f"runs/{name}", FEW | changes)
    measures = {"val": val, "fold": folds, "next-fold": folds | {"seed": 1}}
    found = {
        (name, measured): [
            each
            for each in ("validation", "test")
            if re.search(rf"learned from (\d+ of the \d+ )?{each} images", text)
        ]
        for name in sources
        for measured, changes in measures.items()
        for text in [told(own.experiment(FEW | changes | {source: name}))]
    }
    validation = {("whole", "val"), ("fold", "val")}
    unseen = {("split", "val"), ("fold", "fold")}
    if source == "train.init":  # the fold that it was tested on is held out
        unseen.add(("fold", "val"))
    for pair, seen in found.items():
        is_unseen = pair in unseen or pair[0] == "other"
        assert seen == ([] if is_unseen else ["validation" if pair in validation else "test"])


def test_first_weights_that_learned_without_labels_have_seen_no_answers(tiny):
    TinyTask("mae", tiny.place).train("runs/masked", FEW)
    changes = FEW | {"data.val_split": 8, "train.init": "masked"}
    assert "learned from" not in told(TinyTask("classify", tiny.place).experiment(changes))
