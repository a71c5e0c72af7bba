"""How a run is found, named and read, and the bundled model."""

import errno
import json
import os
import shutil
from pathlib import Path

import pytest

from vitcli.core.spec import ExperimentSpec
from vitcli.runner.errors import ConfigError, InputError, InUseError, UserError
from vitcli.runner.evaluate.weights import default_run
from vitcli.runner.experiment.config import load_experiment
from vitcli.runner.experiment.diff import differences, with_data_defaults
from vitcli.runner.files import commit_json
from vitcli.runner.run import folder
from vitcli.runner.run.folder import (
    BUNDLED,
    RUNS,
    RunDir,
    bundled_models,
    default_path,
    find_run,
    hold_folder,
    list_runs,
    named_folder,
    temporary_files,
)
from vitcli.runner.run.listing import remove_runs
from vitcli.runner.run.record import read_record
from vitcli.runner.train.prepare import resume_experiment


def make(path: str) -> RunDir:
    run = RunDir(Path(path))
    run.create(ExperimentSpec())
    return run


def test_the_files_of_a_tracker_are_no_run(here):
    make("runs/tracker/train/seed0")
    made = make("runs/one/train/seed0")
    files = made.path / "tracker/wandb/wandb/run-1/files"
    files.mkdir(parents=True)
    (files / "config.yaml").write_text("wandb_version: 1\n")
    assert {run.name for run in list_runs()} == {"tracker/train/seed0", "one/train/seed0"}


def test_a_run_is_found_by_folder_by_name_and_by_experiment(here):
    make("runs/one/train/seed0")
    assert find_run("runs/one/train/seed0").name == "one/train/seed0"
    assert find_run("one/train/seed0").name == "one/train/seed0"
    assert find_run("one").name == "one/train/seed0", "its only run"
    make("runs/one/train/seed1")
    assert find_run("one").name == "one/train/seed0", "the plain one of several"
    make("runs/two/a")
    make("runs/two/b")
    with pytest.raises(ConfigError, match="two holds 2 runs; name one of them: two/a, two/b"):
        find_run("two")
    elsewhere = make("elsewhere/run")
    assert find_run("elsewhere/run").path == elsewhere.path
    assert find_run("cifar10-pocket").is_bundled


def test_what_is_no_run_is_said(here):
    long = ("x" * 300, r"'x{49}\.{3}x{48}'")
    for text, told in (("", "empty"), ("unknown", "'unknown'"), long, ("a.pth", "vitcli import")):
        with pytest.raises(UserError, match=told):
            find_run(text)
    Path("nothing").mkdir()
    with pytest.raises(InputError, match="not a run folder"):
        find_run("nothing")
    Path("nothing/plan.json").write_text("{}")
    with pytest.raises(InputError, match="vitcli runs watch nothing"):
        find_run("nothing")


def test_a_name_or_a_changed_experiment_has_a_folder_of_its_own(here):
    assert RunDir(Path("-dash")).command("eval") == "vitcli eval ./-dash", "it is no option"
    for command in ("vitcli predict hard", "vitcli predict runs/hard"):
        assert RunDir(RUNS / "hard").command("predict") == command
        Path("hard").mkdir(exist_ok=True)
    spec = ExperimentSpec(seed=3)
    assert default_path("tiny", spec, changed=False) == Path("runs/tiny/train/seed3")
    changed = default_path("tiny", spec, changed=True)
    assert changed.parent.name.startswith("train-")
    with pytest.raises(ConfigError, match="cannot be called"):
        default_path(".hidden", spec, changed=False)
    assert named_folder("my pets") == RUNS / "my pets"
    for name in (" ", "a/b", "..", "auto", "quickstart", "a\nb"):
        with pytest.raises(ConfigError, match="--name"):
            named_folder(name)


def test_temporary_files_go_and_a_changed_configuration_has_another_hash(here):
    run = make("runs/x")
    (run.path / ".config.yaml.abc_0123").write_text("half")
    assert temporary_files(run.path)
    run.create(ExperimentSpec())
    assert not temporary_files(run.path)
    before = run.config_sha256()
    (run.path / "config.yaml").write_text("seed: 1\n")
    assert run.config_sha256() != before


def test_another_folder_in_the_place_of_a_held_one_is_not_written_to(here):
    with hold_folder(Path("held"), "busy"):
        commit_json(Path("held/a.json"), 1)
        Path("held").rename("moved")
        Path("held").mkdir()
        with pytest.raises(InUseError, match="moved to, or deleted"):
            commit_json(Path("held/a.json"), 2)
        Path("held/.lock").touch()
        with pytest.raises(InUseError):
            commit_json(Path("held/below/a.json"), 2)
        shutil.rmtree("moved")
        with pytest.raises(InUseError, match="or deleted"):
            commit_json(Path("held/a.json"), 2)
    commit_json(Path("held/a.json"), 3)


def refuse(path: object, *_: object) -> str:
    raise OSError(errno.EIO, "Input/output error")


def test_a_configuration_that_the_disk_does_not_give_is_named(here, monkeypatch):
    run = make("runs/x")
    monkeypatch.setattr(Path, "open", refuse)
    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(InputError, match=r"runs/x/config\.yaml: cannot be read"):
        run.spec()


NAME = "cifar10-pocket"
POCKET = RunDir(BUNDLED / NAME)


def test_the_package_holds_one_small_model_that_says_what_it_is():
    assert bundled_models() == [NAME]
    size = sum(path.stat().st_size for path in POCKET.path.rglob("*.safetensors"))
    assert size <= 1_500_000
    record, card = read_record(POCKET), (POCKET.path / "README.md").read_text()
    result = record.result
    assert result["test_accuracy"] >= 0.85
    assert result["epochs"] == POCKET.spec().train.epochs == record.metrics[-1]["epoch"]
    assert f"{100 * result['test_accuracy']:.2f} % of 10,000 images" in card
    assert record.data_hash in card


@pytest.mark.plugin("distil")
def test_it_was_trained_by_the_experiment_of_its_name_and_is_only_read(here):
    file = load_experiment(NAME).spec
    meta = read_record(POCKET).meta
    changed = differences(with_data_defaults(file, POCKET.spec(), meta), POCKET.spec())
    assert set(changed) <= {"task.teacher.sha256"}
    assert not meta["dirty"]
    with pytest.raises(ConfigError, match="is a bundled model"):
        remove_runs([find_run(NAME)])
    with pytest.raises(ConfigError, match="is a bundled model"):
        resume_experiment(NAME)
    assert (POCKET.path / "config.yaml").exists()


def test_a_run_of_ones_own_goes_before_it(copy_of_run, here):
    assert default_run().name == NAME
    own = RunDir(copy_of_run(here / "runs" / NAME))
    assert default_run().path.resolve() == find_run(NAME).path.resolve() == own.path
    meta = read_record(own).meta
    strings = ({"variant": "no-ffn"}, {"data": "shapes"}, {"data": "scenes"})
    for fact in (*strings, {"new_head": True}):
        (own.path / "meta.json").write_text(json.dumps(meta | fact))
        assert default_run().is_bundled, "a trial, a generated data set, or a head without training"
    (own.path / "meta.json").write_text(json.dumps(meta))
    own.set_status("interrupted", 5)
    assert default_run().is_bundled


def test_a_run_that_another_process_trains_is_refused_and_only_looked_at(here):
    run = make("runs/x")
    run.refuse_use()
    assert not (run.path / ".lock").exists()
    with run.lock(), pytest.raises(InUseError):
        RunDir(run.path).refuse_use()
    run.refuse_use()


def test_what_is_wrong_with_a_checkpoint_is_said_by_the_sizes_of_its_files(tmp_path, monkeypatch):
    run = RunDir(tmp_path)
    assert "missing" in run.checkpoint_problem(4)
    step = run.checkpoints / "4"
    step.mkdir(parents=True)
    (step / "weights").write_bytes(b"12")
    for size, problem in ((2, ""), (3, "2 of 3 bytes"), (None, "damaged: its")):
        commit_json(step / folder.MANIFEST, {"files": {"weights": {"bytes": size} if size else 0}})
        assert problem in run.checkpoint_problem(4)
        assert bool(problem) == bool(run.checkpoint_problem(4))

    def refuse(path):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(folder.files, "read_json", refuse)
    assert "Permission denied" in run.checkpoint_problem(4)


@pytest.mark.parametrize(("needs", "kind"), [("needs a plugin", ConfigError), ("", InputError)])
def test_a_missing_plugin_is_no_damage(monkeypatch, needs, kind):
    monkeypatch.setattr(folder.own_code, "missing_plugin", lambda config: needs)
    with pytest.raises(UserError) as caught, folder._damage({}):
        raise ConfigError("no")
    assert type(caught.value) is kind


def test_an_unused_name_has_the_first_free_number(here):
    assert folder.unused_name("pets") == "pets"
    for name in ("pets", "pets-2"):
        (folder.RUNS / name).mkdir(parents=True)
    assert folder.unused_name("pets") == "pets-3"
