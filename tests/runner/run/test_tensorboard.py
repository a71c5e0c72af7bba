"""TensorBoard's event file: a full disk ends the file, but not the training."""

import errno
import io
import os
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.context import RequestContext
from tensorboard.plugins.base_plugin import TBContext
from tensorboard.plugins.hparams.backend_context import Context

from tests.fabricated import make_run
from tests.runner.study.trials import ROOT, write_study
from tests.runner.train.conftest import stops_after, train
from tests.same_run import assert_same_run
from vitcli.runner.attn_map import training_pictures
from vitcli.runner.engines.drivers import read_plan
from vitcli.runner.files import commit_json
from vitcli.runner.run.compare import compared_settings
from vitcli.runner.run.folder import RunDir
from vitcli.runner.run.record import read_record
from vitcli.runner.run.tensorboard import Board
from vitcli.runner.study.plan import Options, plan_study
from vitcli.runner.study.run import write_plan

FULL = os.strerror(errno.ENOSPC)


class FileOnFullDisk(io.FileIO):
    """A file whose disk is full after a number of bytes, as the operating system reports it."""

    left = 0

    def write(self, content) -> int:
        if len(content) > self.left:
            raise OSError(errno.ENOSPC, FULL)
        self.left -= len(content)
        return super().write(content)


def fill_disk(monkeypatch, capacity: int = 0) -> None:
    """Leave ``capacity`` bytes for each new event file; other files are written as usual."""
    original = Path.open

    def open_file(path: Path, mode: str = "r", *words, **options):
        if mode != "xb" or "tfevents" not in path.name:
            return original(path, mode, *words, **options)
        raw = FileOnFullDisk(path, "x")
        raw.left = capacity
        return io.BufferedWriter(raw, buffer_size=64)

    monkeypatch.setattr(Path, "open", open_file)


def test_a_full_disk_does_not_change_or_stop_a_training(tiny, here, monkeypatch, copy_of_run):
    calm = RunDir(copy_of_run(here / "calm"))
    messages: list[str] = []
    fill_disk(monkeypatch, 3000)
    full = train(tiny, "full", on_message=messages.append)
    assert_same_run(full.folder, calm)
    (warning,) = [text for text in messages if text.startswith("warning")]
    assert FULL in warning
    assert read_record(full.folder).status == "finished"


def test_a_picture_that_cannot_be_drawn_does_not_change_or_stop_a_training(
    tiny, here, monkeypatch, copy_of_run
):
    """It is drawn after the checkpoint, so even an end of the process would lose nothing."""
    drawn_at: list[int] = []

    def fail(*_):
        drawn_at.append(RunDir(here / "odd").last_step())
        raise ValueError("'nope' is not a valid value for backend")

    monkeypatch.setattr(training_pictures, "attention_strip", fail)
    messages: list[str] = []
    odd = train(tiny, "odd", on_message=messages.append)
    assert_same_run(odd.folder, RunDir(copy_of_run(here / "calm")))
    assert drawn_at == [5, 10, 15, 20]
    assert ["nope" in text for text in messages if text.startswith("warning")] == [True]


def test_a_run_that_continues_with_space_on_the_disk_has_all_numbers(tiny, here, monkeypatch):
    with monkeypatch.context() as patch, stops_after(13):
        fill_disk(patch)
        train(tiny, "run")
    assert not [*(here / "run").glob("events*")]
    train(tiny, "run", resume=True)
    (file,) = (here / "run").glob("events.out.tfevents.*")
    events = LegacyEventFileLoader(str(file)).Load()
    tags = {value.tag for event in events for value in event.summary.value}
    assert {"loss/train", "accuracy/test", "images/augmented"} <= tags


@pytest.mark.parametrize("capacity", [0, 100])
def test_an_incomplete_file_does_not_replace_an_older_one(tmp_path, monkeypatch, capacity):
    records = [{"step": step, "train_loss": 1.0} for step in range(9)]
    Board(tmp_path, records, pytest.fail).close()
    (old,) = tmp_path.iterdir()
    before = old.read_bytes()
    fill_disk(monkeypatch, capacity)
    reasons: list[str] = []
    board = Board(tmp_path, records, reasons.append)
    board.scalars({"step": 9, "train_loss": 1.0})
    board.close()
    assert reasons == [FULL]
    assert [*tmp_path.iterdir()] == [old]
    assert old.read_bytes() == before


def test_the_table_of_runs_has_the_settings_that_differ(tiny, here):
    for name, changes in (("a", {}), ("b", {"model.depth": 1})):
        short = {"train.limit_batches": 1, "train.epochs": 2}
        train(tiny, f"logs/{name}", short | changes, stop_after=1 if name == "b" else None)
    multiplexer = EventMultiplexer(tensor_size_guidance={"scalars": 0})
    multiplexer.AddRunsFromDirectory(str(here / "logs")).Reload()
    provider = MultiplexerDataProvider(multiplexer, str(here / "logs"))
    board = Context(TBContext(data_provider=provider))
    found = board.hparams_metadata(RequestContext(), "")
    columns = board.experiment_from_metadata(RequestContext(), "", True, found, [])
    names = "experiment data.name seed model.depth train.limit_batches train.epochs"
    assert {each.name for each in columns.hparam_infos} == {*names.split()}
    assert columns.metric_infos[0].name.tag == "accuracy/test"


def test_the_settings_of_a_trial_are_those_that_its_study_varies(here):
    variants = "{base: {}, deep: {model.depth: 2}, wide: {model.embed_dim: 32}}"
    study = write_study(f"base: quickstart\nseeds: [0, 1]\nvariants: {variants}\n")
    run = make_run(1, folder=ROOT / "deep/seed1", meta={"variant": "deep"})
    write_plan(plan_study(study, ROOT, ()), Options())
    known = run, run.spec(), read_record(run).meta
    found = compared_settings(*known)
    settings = {name: found[name] for name in found.keys() - {"experiment", "data.name"}}
    varied = {"model.depth": 2, "model.embed_dim": 64}
    assert settings == {"variant": "deep", "seed": 1} | varied
    plan = read_plan(ROOT)
    plan["trials"]["deep/seed1"]["setting"] = {"optim.lr": 0.5}  # of a search
    commit_json(ROOT / "plan.json", plan)
    assert compared_settings(*known)["optim.lr"] == 0.5
