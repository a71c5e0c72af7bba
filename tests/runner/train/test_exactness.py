"""An inexact continuation is refused, or marked permanently."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tests.runner.train.conftest import continue_run, files, stops_after, train, trains
from vitcli.core.spec import ExperimentSpec
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.machine.device import chosen_kernels
from vitcli.runner.run.checkpoint import Checkpoint, keep_weights, load_checkpoint, save_checkpoint
from vitcli.runner.run.folder import RunDir
from vitcli.runner.run.record import read_record
from vitcli.runner.train import exactness


def test_another_environment_is_refused_and_changes_no_file(stopped, monkeypatch):
    before = files(stopped.path)
    real = load_checkpoint(stopped.checkpoints / str(stopped.last_step())).state["circumstances"]
    assert {"threads", "torch", "cpu_capability", "hardware", "vitcli"} <= real.keys()
    monkeypatch.setattr(exactness, "numerical_environment", lambda *_: real | {"threads": 7})
    change = f"threads {real['threads']} -> 7"
    with pytest.raises(ConfigError, match=change):
        continue_run(stopped)
    assert files(stopped.path) == before
    assert continue_run(stopped, allow=True).result["exact"] is False
    assert read_record(stopped).inexact == [f"from step 5: {change}"]


def test_other_instructions_of_the_libraries_are_another_environment(stopped, monkeypatch):
    """Their products have other bits then, also where torch has the same instructions."""
    monkeypatch.setenv("MKL_ENABLE_INSTRUCTIONS", "SSE4_2")
    with pytest.raises(ConfigError, match="limits none -> MKL_ENABLE_INSTRUCTIONS=SSE4_2"):
        continue_run(stopped)


def test_a_run_keeps_what_torch_compile_did(tiny, here, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda module, **_: nn.Sequential(module))
    with stops_after(6):
        train(tiny, here / "stopped", {"train.compile": True})
    run = RunDir(here / "stopped")
    assert read_record(run).meta["compiled"] is True
    with monkeypatch.context() as patch:
        patch.setattr(torch, "compile", lambda module, **_: lambda *_, **__: 1 / 0)
        with pytest.raises(ConfigError, match="compiled True -> False"):
            continue_run(run)
    assert continue_run(run).result["exact"] is True


def test_a_checkpoint_without_environment_is_refused(stopped):
    checkpoint = load_checkpoint(stopped.checkpoints / "5")
    del checkpoint.state["circumstances"]
    save_checkpoint(stopped.checkpoints, checkpoint)
    with pytest.raises(InputError, match=r"older than version 0\.8\.0"):
        continue_run(stopped)


def test_a_finished_run_is_trained_further_and_marked(calm, named):
    with pytest.raises(ConfigError, match="another configuration"):
        continue_run(calm, **{"train.epochs": 6})
    with pytest.raises(ConfigError, match=r"another model\.depth"):
        continue_run(calm, allow=True, **{"model.depth": 3, "train.epochs": 9})
    with pytest.raises(ConfigError, match="no steps left"):
        continue_run(calm, allow=True, **{"optim.lr": 1e-4})
    before = read_record(calm).config_hash
    further = continue_run(calm, allow=True, **{"train.epochs": 6})
    assert further.state == "finished"
    assert (further.result["epochs"], further.result["exact"]) == (6, False)
    assert calm.spec().train.epochs == 6
    assert [record["epoch"] for record in read_record(calm).metrics] == [1, 2, 3, 4, 5, 6]
    with pytest.raises(ConfigError, match="already has 6 epochs"):
        continue_run(calm, allow=True, **{"train.epochs": 5})
    assert not trains(continue_run, calm)
    assert "from step 20: train.epochs 4 -> 6" in read_record(calm).inexact
    assert read_record(calm).config_hash != before, "no search takes it for the trial"


def test_a_kill_between_two_files_keeps_the_mark(stopped, monkeypatch):
    """Without the mark, the new configuration is not that of the training."""
    with monkeypatch.context() as patch:
        patch.setattr(RunDir, "set_meta", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            continue_run(stopped, allow=True, **{"optim.lr": 1e-4})
    with pytest.raises(ConfigError, match=r"config\.yaml \w{8} -> \w{8}"):
        continue_run(stopped)
    assert continue_run(stopped, allow=True).result["exact"] is False


def test_a_trial_reduced_to_weights_is_not_changed(calm):
    keep_weights(calm.checkpoints)
    before = files(calm.path)
    with pytest.raises(InputError, match=r"only the weights"):
        continue_run(calm, allow=True, **{"train.epochs": 6})
    assert files(calm.path) == before


def test_only_fields_that_keep_the_tensors_may_change():
    fixed = ("train.batch_size", "optim.name", "seed", "model.depth", "data.name", "train.kernels")
    assert not any(map(exactness.may_change, fixed))
    assert all(map(exactness.may_change, ("optim.lr", "train.epochs", "data.augment.mixup")))


@pytest.mark.parametrize(("deterministic", "exact"), [(False, False), (True, True)])
def test_on_a_gpu_only_a_deterministic_training_is_exact(deterministic, exact):
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    with chosen_kernels(gpu, deterministic):
        assert exactness.is_exact({}, gpu) is exact
    assert exactness.is_exact({}, cpu)
    assert not exactness.is_exact({"inexact": ["from step 5"]}, cpu)


def test_another_determinism_is_another_environment(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a GPU")
    gpu, facts = torch.device("cuda"), {"compiled": False, "precision": "tf32", "num_steps": 1}
    now: Any = SimpleNamespace(device=gpu, spec=ExperimentSpec(), **facts)
    environment = exactness.numerical_environment(now)
    checkpoint = Checkpoint(1, {}, {"precision": "tf32", "circumstances": environment})
    run = RunDir(Path("run"))
    assert exactness.changes_since(run, checkpoint, now) == {}
    with chosen_kernels(gpu, True):
        assert exactness.changes_since(run, checkpoint, now) == {"deterministic": (False, True)}
    now.precision = "fp32"
    with pytest.raises(ConfigError, match=r"-o run --rerun --precision fp32"):
        exactness.changes_since(run, checkpoint, now)
