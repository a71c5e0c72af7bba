"""A run that is stopped at any instant and continued gives bit-identical results."""

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tests.patience import HANG
from tests.same_run import assert_same_run, final_tensors
from tests.stopping import stop_after
from vitcli.core.objectives.classify import Classify
from vitcli.core.spec.slots import ATTENTIONS
from vitcli.core.train import training as loop
from vitcli.runner.errors import ConfigError, DivergedError, InputError, InUseError, StoppedError
from vitcli.runner.evaluate.weights import load_model
from vitcli.runner.experiment.config import Experiment, load_experiment
from vitcli.runner.files import commit_json
from vitcli.runner.run.folder import RunDir, steps
from vitcli.runner.train import trainer as training
from vitcli.runner.train.events import EpochDone, Event
from vitcli.runner.train.start import Request, start

OTHER_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


def launch(tiny: Path, folder: str, environment: dict, *options: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "vitcli", "train", str(tiny), "-o", folder, *options]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_for_step(process: subprocess.Popen, folder: Path) -> None:
    """Wait for the first checkpoint."""
    deadline = time.monotonic() + HANG
    while not steps(folder / "checkpoints"):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.ci
def test_a_killed_training_resumes_to_the_same_bits(tiny, here, environment):
    calm = launch(tiny, "calm", environment, "--epochs", "30")
    killed = launch(tiny, "killed", environment, "--epochs", "30")
    wait_for_step(killed, here / "killed")
    killed.kill()
    killed.communicate()
    killed_at = steps(here / "killed" / "checkpoints")[0]
    assert 0 < killed_at < 150
    resumed = launch(tiny, "killed", environment, "--epochs", "30", "--resume", "auto")
    for process in (calm, resumed):
        assert process.wait(HANG) == 0, process.communicate()
        process.communicate()
    assert_same_run(RunDir(here / "calm"), RunDir(here / "killed"))


@pytest.mark.parametrize(
    "number", [signal.SIGINT, *(pytest.param(n, marks=pytest.mark.ci) for n in OTHER_SIGNALS)]
)
def test_a_signal_saves_prints_how_to_continue_and_sets_the_exit_code(
    tiny, here, environment, number
):
    process = launch(tiny, "stopped", environment, "--epochs", "2000")
    wait_for_step(process, here / "stopped")
    process.send_signal(number)
    _, talk = process.communicate(timeout=HANG)
    assert process.returncode == 128 + number
    assert "Continue: vitcli train --resume" in talk
    assert "Traceback" not in talk
    status = RunDir(here / "stopped").status()
    assert status["state"] == "interrupted"
    assert status["step"] == steps(here / "stopped" / "checkpoints")[0]


def run(tiny: Path, folder: str, **options):
    return start(load_experiment(str(tiny)), Request(output=Path(folder), **options))


@pytest.mark.parametrize("count", [1, 4, 5, 6, 13])
def test_a_run_stopped_inside_or_between_epochs_ends_with_the_same_bits(
    tiny, here, monkeypatch, count
):
    calm = run(tiny, "calm").run
    with monkeypatch.context() as patch:
        stop_after(patch, count)
        with pytest.raises(StoppedError):
            run(tiny, "stopped")
    stopped = RunDir(here / "stopped")
    assert stopped.status()["state"] == "interrupted"
    assert run(tiny, "stopped", resume=True).trained
    assert_same_run(calm, stopped)


class Killed(BaseException):
    """An exception that no part of a training handles, like SIGKILL."""


@pytest.mark.shipped_save_policy
@pytest.mark.parametrize("epoch", [1, 3])
def test_with_the_default_save_policy_a_kill_costs_steps_and_no_bits(tiny, here, epoch):
    """Short epochs share a checkpoint, so more than one epoch may be lost."""
    assert training.SAVE_SHARE < 0.1
    calm = run(tiny, "calm").run

    def die(event: Event) -> None:
        if isinstance(event, EpochDone) and event.record["epoch"] == epoch:
            raise Killed

    with pytest.raises(Killed):
        start(load_experiment(str(tiny)), Request(output=Path("killed")), on_event=die)
    killed = RunDir(here / "killed")
    assert killed.status()["state"] == "running"
    assert steps(killed.checkpoints)[0] in range(5, 5 * epoch + 1, 5)
    run(tiny, "killed", resume=True)
    assert_same_run(calm, killed)


@pytest.mark.shipped_save_policy
def test_with_the_default_save_policy_a_stop_resumes_to_the_same_bits(tiny, here, monkeypatch):
    assert_stopping_changes_nothing(load_experiment(str(tiny)), monkeypatch)


def test_the_bits_depend_on_the_step_seed(tiny, here, monkeypatch):
    """Control: if dropout did not depend on the step, the tests above would notice."""
    calm = run(tiny, "calm").run
    with monkeypatch.context() as patch:
        stop_after(patch, 6)
        with pytest.raises(StoppedError):
            run(tiny, "stopped")
    monkeypatch.setattr(loop, "seed_step", lambda *_: torch.manual_seed(7))
    run(tiny, "stopped", resume=True)
    with pytest.raises(AssertionError):
        assert_same_run(calm, RunDir(here / "stopped"))


def test_a_finished_run_is_not_changed(tiny, here):
    first = run(tiny, "done")
    before = {p: p.read_bytes() for p in first.run.path.rglob("*") if p.is_file()}
    again = run(tiny, "done", resume=True)
    assert not again.trained
    assert again.result == first.result
    assert {p: p.read_bytes() for p in first.run.path.rglob("*") if p.is_file()} == before


def test_another_configuration_is_refused_with_its_fields(tiny, here):
    run(tiny, "done")
    tiny.write_text(tiny.read_text().replace("epochs: 4", "epochs: 5"))
    with pytest.raises(ConfigError, match=r"another configuration \(train\.epochs\)"):
        run(tiny, "done")


def test_an_unfinished_run_is_not_trained_from_the_start(tiny, here, monkeypatch):
    stop_after(monkeypatch, 6)
    with pytest.raises(StoppedError):
        run(tiny, "stopped")
    with pytest.raises(ConfigError, match="vitcli train --resume"):
        run(tiny, "stopped")


def test_other_pictures_are_refused(tiny, here, pictures, monkeypatch):
    with monkeypatch.context() as patch:
        stop_after(patch, 6)
        with pytest.raises(StoppedError):
            run(tiny, "stopped")
    next((pictures / "train" / "dark").iterdir()).unlink()
    with pytest.raises(Exception, match="other images"):
        run(tiny, "stopped", resume=True)


def test_a_folder_in_use_is_refused_and_not_changed(tiny, here):
    held = RunDir(here / "held")
    with held.lock(), pytest.raises(InUseError, match="another process"):
        run(tiny, "held")
    assert not held.exists


@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_an_edited_configuration_is_refused_or_marked(tiny, here, monkeypatch, has_checkpoint):
    with monkeypatch.context() as patch:
        stop_after(patch, 6)
        with pytest.raises(StoppedError):
            run(tiny, "edited")
    if not has_checkpoint:
        shutil.rmtree("edited/checkpoints")
        Path("edited/checkpoints").mkdir()
    step = RunDir(Path("edited")).last_step()
    config = Path("edited/config.yaml")
    text = config.read_text().replace("seed: 0", "seed: 3", 1)
    config.write_text(text.replace("weight_decay: 0.05", "weight_decay: 0.01", 1))
    told = r"config\.yaml optim\.weight_decay 0\.05 -> 0\.01, config\.yaml seed 0 -> 3\); restore"
    with pytest.raises(ConfigError, match=told):
        run(config, "edited", resume=True)
    marked = run(config, "edited", resume=True, allow_inexact=True)
    assert not marked.result["exact"]
    assert f"from step {step}: config.yaml" in marked.run.read("meta.json")["inexact"][0]
    assert not run(config, "edited", resume=True).trained


@pytest.mark.parametrize("recorded", [None, 5, {"seed": "x"}, {"seed": 3}])
def test_an_edit_is_refused_where_the_first_configuration_is_not_known(
    tiny, here, monkeypatch, recorded
):
    """Runs of earlier versions have its hash only."""
    with monkeypatch.context() as patch:
        stop_after(patch, 6)
        with pytest.raises(StoppedError):
            run(tiny, "edited")
    config, place = Path("edited/config.yaml"), Path("edited/meta.json")
    config.write_text(config.read_text().replace("seed: 0", "seed: 3", 1))
    meta = RunDir(Path("edited")).read("meta.json")
    commit_json(
        place,
        {k: v for k, v in meta.items() if k != "config"}
        | ({} if recorded is None else {"config": recorded}),
    )
    with pytest.raises(ConfigError, match=r"config\.yaml \w{8} -> \w{8}\); restore"):
        run(config, "edited", resume=True)


def test_a_comment_in_the_configuration_changes_nothing(tiny, here, monkeypatch):
    with monkeypatch.context() as patch:
        stop_after(patch, 6)
        with pytest.raises(StoppedError):
            run(tiny, "edited")
    config = Path("edited/config.yaml")
    config.write_text("# a comment\n" + config.read_text())
    assert run(config, "edited", resume=True).result["exact"]


def test_a_damaged_meta_file_is_not_an_empty_one(tiny, here, monkeypatch):
    with monkeypatch.context() as patch:
        stop_after(patch, 6)
        with pytest.raises(StoppedError):
            run(tiny, "stopped")
    Path("stopped/meta.json").write_text("{")
    with pytest.raises(InputError, match=r"meta\.json: damaged"):
        run(tiny, "stopped", resume=True)


@pytest.mark.parametrize("was_renamed", [True, False])
def test_a_training_never_writes_into_a_folder_that_replaced_its_own(tiny, here, was_renamed):
    folder = here / "again"

    def replace(event: Event) -> None:
        if isinstance(event, EpochDone) and event.record["epoch"] == 2:
            folder.rename(here / "moved") if was_renamed else shutil.rmtree(folder)
            folder.mkdir()
            (folder / "config.yaml").write_text("seed: 7\n")

    request = Request(output=folder)
    place = r"moved$" if was_renamed else "deleted"
    with pytest.raises(InUseError, match=f"taken the place.*{place}"):
        start(load_experiment(str(tiny)), request, on_event=replace)
    found = sorted(path.name for path in folder.rglob("*") if path.is_file())
    assert found == ["config.yaml"]


def test_divergence_keeps_the_last_finite_checkpoint(tiny, here, monkeypatch):
    original = Classify.batches

    def poisoned(self, data, epoch, first_batch=0):
        for batch in original(self, data, epoch, first_batch):
            if epoch == 2:
                batch["images"][0, 0, 0, 0] = float("nan")
            yield batch

    monkeypatch.setattr(Classify, "batches", poisoned)
    with pytest.raises(DivergedError, match="not finite"):
        run(tiny, "diverged")
    folder = RunDir(here / "diverged")
    assert folder.status()["state"] == "diverged"
    assert steps(folder.checkpoints)[0] == 10
    assert all(t.isfinite().all() for t in final_tensors(folder).values())


@pytest.mark.parametrize(
    "change", [{"depth": 1}, {"embed_dim": 8}, {"num_heads": 4}, {"pool": "seq"}, {"ffn": "relu"}]
)
def test_a_valid_checkpoint_of_another_model_is_refused(tiny, here, monkeypatch, change):
    fields = {f"model.{name}": value for name, value in change.items()}
    start(load_experiment(str(tiny), fields), Request(output=here / "other"))
    with monkeypatch.context() as patch:
        stop_after(patch, 6)
        with pytest.raises(StoppedError):
            run(tiny, "stopped")
    for folder in (here / "stopped" / "checkpoints").iterdir():
        shutil.rmtree(folder)
    newest = steps(here / "other" / "checkpoints")[0]
    shutil.copytree(
        here / "other" / "checkpoints" / str(newest), here / "stopped" / "checkpoints" / str(newest)
    )
    with pytest.raises(InputError, match="another model"):
        run(tiny, "stopped", resume=True)
    with pytest.raises(InputError, match="another model"):
        load_model("stopped")


def assert_stopping_changes_nothing(experiment: Experiment, monkeypatch) -> None:
    calm = start(experiment, Request(output=Path("calm"))).run
    with monkeypatch.context() as patch:
        stop_after(patch, 7)
        with pytest.raises(StoppedError):
            start(experiment, Request(output=Path("stopped")))
    start(experiment, Request(output=Path("stopped"), resume=True))
    assert_same_run(calm, RunDir(Path("stopped")))


@pytest.mark.parametrize("row", [name for name in ATTENTIONS if name != "softmax"])
def test_every_attention_trains_and_resumes_to_the_same_bits(tiny, here, monkeypatch, row):
    fields = {"model.attention": row, "model.performer_redraw": 3, "train.accumulate": 2}
    experiment = load_experiment(str(tiny), fields | {"train.grad_checkpointing": True})
    assert_stopping_changes_nothing(experiment, monkeypatch)


@pytest.mark.parametrize("change", ["train.accumulate=4", "optim.name=sgd", "optim.name=muon"])
def test_other_settings_resume_to_the_same_bits(tiny, here, monkeypatch, change):
    name, _, value = change.partition("=")
    experiment = load_experiment(str(tiny), {name: int(value) if value.isdecimal() else value})
    assert_stopping_changes_nothing(experiment, monkeypatch)
