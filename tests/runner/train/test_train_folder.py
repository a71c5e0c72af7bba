"""Run folders and first weights: a training deletes no file unasked and leaves no false state."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.runner.train.conftest import continue_run, files, stops_after, train, trains
from tests.same_run import assert_same_run
from vitcli.core.objectives.classify import Classify
from vitcli.runner.data.load import load_data
from vitcli.runner.errors import ConfigError, InputError, InUseError, UserError
from vitcli.runner.evaluate.teacher import other_weights
from vitcli.runner.evaluate.weights import encoder_weights, load_model, start_sha256
from vitcli.runner.experiment.config import config_text, load_experiment
from vitcli.runner.run.checkpoint import prune
from vitcli.runner.run.compare import compare_runs
from vitcli.runner.run.folder import RunDir, list_runs
from vitcli.runner.run.record import read_record
from vitcli.runner.train.dry_run import dry_run
from vitcli.runner.train.prepare import Request
from vitcli.runner.train.train import train as run_training
from vitcli.runner.train.trainer import Hook


def run(tiny: Path, folder: str = "run", changes: dict | None = None, **options):
    return train(tiny, folder, {"train.epochs": 1} | (changes or {}), **options)


def test_rerun_removes_only_the_run(calm):
    (calm.path / "thesis.txt").write_text("mine")
    assert trains(run, calm.path / "config.yaml", "calm", rerun=True)
    assert (calm.path / "thesis.txt").read_text() == "mine"


@pytest.mark.parametrize(
    "place", ["checkpoints", "checkpoints/20", "code", "code/part.py", "metrics.jsonl"]
)
@pytest.mark.parametrize("options", [{"rerun": True}, {"resume": True}])
def test_a_run_writes_and_deletes_nothing_behind_a_link(tiny, calm, here, place, options):
    """Neither a training nor its dry run; nor does a pipe that stands for a file stop either."""
    (calm.path / "code").mkdir()
    (calm.path / "code/part.py").write_text("edited")
    (calm.path / place).rename(here / "elsewhere")
    (calm.path / place).symlink_to(here / "elsewhere")
    before = files(here)
    for call in (run, dry):
        with pytest.raises(InputError, match="link"):
            call(tiny, "calm", **options)
    assert files(here) == before
    (calm.path / place).unlink()
    if place == "metrics.jsonl":
        os.mkfifo(calm.path / place)
        for call in (run, dry):
            with pytest.raises(InputError, match="regular"):
                call(tiny, "calm", **options)


def dry(tiny: Path, folder: str, **options):
    dry_run(load_experiment(str(tiny)), Request(output=Path(folder), **options))


def test_old_checkpoints_are_removed_without_the_files_of_others(calm):
    mine = [calm.checkpoints / name for name in ("7/notes.txt", "8/manifest.json")]
    for path in mine:
        path.parent.mkdir()
        path.touch()
    (calm.checkpoints / "8").rename(calm.path / "elsewhere")
    (calm.checkpoints / "8").symlink_to(calm.path / "elsewhere")
    (calm.checkpoints / "7/.manifest.json.0123abc_").touch()
    prune(calm.checkpoints, ())
    assert sorted(path for path in calm.checkpoints.rglob("*") if not path.is_dir()) == [mine[0]]
    assert mine[1].exists()


@pytest.mark.parametrize("text", ["other: program", "train: {epochs: 3}\n"])
@pytest.mark.parametrize("inside", ["notes.txt", "config.yaml", "checkpoints/20240101/weights.bin"])
def test_a_folder_with_other_files_is_not_changed(tiny, here, inside, text):
    """Neither call deletes them, nor the second one because of what the first one left."""
    path = here / "proj" / inside
    path.parent.mkdir(parents=True)
    path.write_text(text)
    before = files(here / "proj")
    for rerun in (False, True):
        with pytest.raises(UserError):
            run(tiny, "proj", rerun=rerun)
    assert files(here / "proj") == before


def test_what_a_power_loss_left_of_a_run_is_trained_again(tiny, here):
    (here / "left").mkdir()
    content = config_text(load_experiment(str(tiny)).spec)
    (here / "left" / "config.yaml").write_text(content)
    assert trains(run, tiny, "left", rerun=True)


@pytest.mark.parametrize(
    "changes", [{"data.name": "imagefolder:gone"}, {"train.batch_size": 4096}, {"data.resize": 9}]
)
def test_a_run_is_not_replaced_by_one_that_cannot_start(tiny, calm, here, changes):
    before = files(calm.path)
    for options in ({"folder": "calm", "rerun": True}, {"folder": "new"}):
        with pytest.raises(UserError):
            run(tiny, changes=changes, **options)
    assert files(calm.path) == before
    assert not (here / "new").exists()


@pytest.mark.parametrize("change", [{"model.mlp_dim": 8}, {"data.mean": [0.5] * 3}])
def test_an_explicitly_set_field_is_a_difference(tiny, here, change):
    changes = {"train.epochs": 0}
    run(tiny, "set", change | changes)
    with pytest.raises(ConfigError, match=next(iter(change)).replace(".", r"\.")):
        run(tiny, "set", changes)


def test_a_resumed_run_keeps_its_provenance(calm, stopped, named):
    before = read_record(stopped).meta
    continue_run(stopped)
    after = read_record(stopped).meta
    assert len(after.pop("sessions")) == 1
    assert before.pop("sessions") == []
    assert after == before


def test_a_bug_leaves_the_run_marked_as_failed(tiny, here, monkeypatch):
    monkeypatch.setattr(Classify, "after_step", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run(tiny)
    record = read_record(here / "run")
    assert (record.state, "ZeroDivisionError" in record.reason) == ("failed", True)


def different_parts(one: str, other: str) -> set[str]:
    left, right = (load_model(name).state_dict() for name in (one, other))
    return {name.split(".")[0] for name in left if not left[name].equal(right[name])}


def test_initial_weights_are_those_of_the_other_run_and_need_it_only_once(tiny, calm, here):
    with pytest.raises(ConfigError, match="--rerun would delete calm"):
        run(tiny, "calm", {"train.init": "calm"}, rerun=True)
    made = run(tiny, "copy", {"train.init": "calm", "train.epochs": 0}).folder
    assert read_record(made).init_sha256 == start_sha256(calm)
    assert different_parts("calm", "copy") == set()
    with stops_after(3):
        run(tiny, "more", {"train.init": "calm"})
    calm.path.rename(here / "elsewhere")
    assert trains(run, tiny, "more", {"train.init": "calm"}, resume=True)
    run(tiny, "calm", {"optim.lr": 0.1})
    with pytest.raises(ConfigError, match="other weights of calm"):
        run(tiny, "copy", {"train.init": "calm", "train.epochs": 0})
    assert run(tiny, "copy", {"train.init": "calm", "train.epochs": 0}, resume=True)
    again = run(tiny, "again", {"train.init": "calm", "train.epochs": 0}).folder
    pair = compare_runs(read_record(made), read_record(again))["environment"]["init_sha256"]
    assert None not in pair


def test_only_the_head_is_replaced_for_other_classes_also_of_the_same_number(tiny, here, pictures):
    mlp = {"model.head": "mlp"}
    run(tiny, "source", mlp)
    for split in ("train", "test"):
        (pictures / split / "dark").rename(pictures / split / "night")
    run(tiny, "new", mlp | {"train.init": "source", "train.epochs": 0})
    assert different_parts("source", "new") == {"head"}
    (pictures / "train" / "other").mkdir()
    for path in list((pictures / "train" / "night").iterdir())[:20]:
        path.rename(pictures / "train" / "other" / path.name)
    run(tiny, "more", mlp | {"train.init": "source", "train.epochs": 0})
    assert different_parts("source", "more") == {"head"}
    with pytest.raises(ConfigError, match="do not fit"):
        run(tiny, "no", mlp | {"train.init": "source", "model.embed_dim": 8})


@pytest.mark.parametrize(
    "change",
    [
        {"optim.warmup_epochs": 0.0},
        {"optim.min_lr_ratio": 0.5},
        {"optim.weight_decay": 5.0},
        {"data.augment.flip": "alternating"},
        {"data.augment.policy": "trivial_augment"},
        {"data.augment.mix_off_epoch": 0},
        *({"model.proj_drop": 0.0}, {"train.batch_size": 20}, {"seed": 1}),
    ],
    ids=str,
)
def test_every_setting_reaches_the_training(copy_of_run, tiny, here, change):
    plain = read_record(RunDir(copy_of_run(here / "plain", {"train.epochs": 2}))).result
    changed = run(tiny, "changed", {"train.epochs": 2} | change).result
    assert changed["test_loss"] != plain["test_loss"]


def test_settings_that_save_memory_are_applied(tiny, here, monkeypatch):
    seen, losses = [], Classify.losses

    def look(self, batch):
        seen.append((self.module.grad_checkpointing, len(batch["images"])))
        return losses(self, batch)

    monkeypatch.setattr(Classify, "losses", look)
    run(tiny, changes={"train.grad_checkpointing": True, "train.accumulate": 4})
    assert set(seen) == {(True, 4)}


def test_a_hook_is_told_of_each_step_and_epoch_in_order(tiny):
    told: list[str] = []

    class Listener(Hook):
        def __getattribute__(self, name):
            if name.startswith("on_"):
                told.append(name)
            return super().__getattribute__(name)

    experiment = load_experiment(str(tiny), {"train.epochs": 2, "train.limit_batches": 2})
    run_training(experiment, Request(output=Path("run")), hooks=(Listener(),))
    epoch = ["on_step", "on_step", "on_epoch"]
    assert told == ["on_start", *epoch, *epoch, "on_end", "on_result", "on_stop"]


def test_a_training_begins_with_the_number_of_test_images_that_it_measures(tiny, monkeypatch):
    monkeypatch.setattr("vitcli.core.data.batches.LIMITED", 4)
    told: list[Any] = []
    changes = {"train.epochs": 1, "train.limit_batches": 2}
    record = run(tiny, changes=changes, on_event=told.append)
    assert told[0].num_test == record.result["num_test"] == 8


def test_a_run_that_appears_while_a_training_is_prepared_is_left_alone(tiny, calm):
    def load(spec, **options):
        shutil.copytree(calm.path, "run", dirs_exist_ok=True)
        return load_data(spec, **options)

    with pytest.raises(InUseError, match="another process has changed this run"):
        run(tiny, load=load)
    assert read_record(Path("run")).status == "finished"


FIRST = {"pretrain.train.epochs": 1, "pretrain.train.batch_size": 16, "pretrain.optim.lr": 1e-3}


def pretrained_runs() -> list[RunDir]:
    return list_runs(Path("runs/pretrained"))


def test_trainings_start_from_the_encoder_of_a_shared_pre_training(tiny, pictures):
    changes = FIRST | {"train.epochs": 0, "train.ema_decay": None}
    told: list[str] = []

    def load(spec, *, on_message=told.append, **options):
        on_message("a note")
        return load_data(spec, **options)

    done = train(tiny, "next", changes, load=load, on_message=told.append)
    assert told.count("a note") == 1, "the plan is made before the pre-training and after it"
    (first,) = pretrained_runs()
    given, taken = encoder_weights(first), load_model(done.folder).state_dict()
    assert all(torch.equal(taken[name], given[name]) for name in given)
    assert done.meta["pretrained"]["run"] == first.name
    assert done.result["pretrain_flops"] == read_record(first).result["train_flops"] > 0
    again = train(tiny, "again", changes | {"optim.lr": 0.1})
    assert len(pretrained_runs()) == 1
    assert again.meta["pretrained"] == done.meta["pretrained"]
    train(tiny, "other", changes | {"pretrain.optim.lr": 2e-3})
    assert len(pretrained_runs()) == 2
    next(pictures.rglob("*.png")).unlink()
    with pytest.raises(InputError, match="was trained on"):
        train(tiny, "other images", changes)
    assert first.exists


def longer(tiny, first: RunDir) -> None:
    continue_run(first, allow=True, **{"train.epochs": 2})


def of_another_seed(tiny, first: RunDir) -> None:
    train(tiny, "seed1", FIRST | {"train.epochs": 0, "seed": 1})
    (other,) = (run for run in pretrained_runs() if run.path != first.path)
    shutil.rmtree(first.path)
    other.path.rename(first.path)


def of_another_task(tiny, first: RunDir) -> None:
    train(tiny, str(first.path), rerun=True)


@pytest.mark.parametrize("replace_it", [longer, of_another_seed, of_another_task])
def test_a_run_in_the_place_of_a_pre_training_is_not_taken_for_it(tiny, replace_it):
    changes = FIRST | {"train.epochs": 0}
    done = train(tiny, "one", changes)
    (first,) = pretrained_runs()
    replace_it(tiny, first)
    with pytest.raises(InputError, match=r"no pre-training of this experiment.*runs rm"):
        train(tiny, "other", changes)
    assert "other weights of pretrained" in other_weights(done, done.spec)


def test_it_is_killed_in_either_part_and_continues_to_the_same_bits(tiny):
    calm = train(tiny, "calm", FIRST)
    for steps in (3, 8):
        for run in pretrained_runs():
            run.path.rename(f"{run.path}-before")
        folder = f"stopped-{steps}"
        with stops_after(steps):
            train(tiny, folder, FIRST, resume=True)
        again = train(tiny, folder, FIRST, resume=True)
        assert_same_run(calm.folder, again.folder)
