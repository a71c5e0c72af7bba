"""An inexact continuation is refused, or marked permanently."""

import re

import pytest
import torch
from torch import nn

from tests.same_run import assert_same_run
from tests.stopping import stop_after
from vitcli.runner.errors import ConfigError, InputError, StoppedError
from vitcli.runner.experiment.config import load_experiment
from vitcli.runner.machine.arithmetic import chosen_kernels
from vitcli.runner.run.checkpoint import keep_weights, load_checkpoint, save_checkpoint
from vitcli.runner.run.folder import RunDir
from vitcli.runner.study.repeated_runs import collect_runs
from vitcli.runner.train import exactness
from vitcli.runner.train.start import Request, resume_experiment, start


@pytest.fixture
def stopped(tiny, here, monkeypatch) -> RunDir:
    with monkeypatch.context() as patch:
        stop_after(patch, 6)
        with pytest.raises(StoppedError):
            start(load_experiment(str(tiny)), Request(output=here / "stopped"))
    return RunDir(here / "stopped")


def continue_run(run: RunDir, *, allow: bool = False, on_message=print, **changes: object):
    experiment, path = resume_experiment(str(run.path), changes)
    request = Request(output=path, resume=True, allow_inexact=allow)
    return start(experiment, request, on_message=on_message)


def content(run: RunDir) -> dict:
    files = [path for path in run.path.rglob("*") if path.is_file()]
    return {path: path.read_bytes() for path in files}


@pytest.mark.parametrize(
    ("name", "value", "hint"),
    [
        ("threads", 7, "set OMP_NUM_THREADS="),
        ("torch", "1.0", "continue it in its original environment"),
        ("cpu_capability", "NO AVX", "continue it in its original environment"),
        ("hardware", "another machine", "continue it in its original environment"),
        ("vitcli", "0.0.1", "continue it in its original environment"),
    ],
)
def test_another_environment_is_refused_and_changes_no_file(
    stopped, monkeypatch, name, value, hint
):
    before, real = content(stopped), exactness.numerical_environment(torch.device("cpu"), False)
    monkeypatch.setattr(exactness, "numerical_environment", lambda *_: real | {name: value})
    with pytest.raises(ConfigError, match=hint) as caught:
        continue_run(stopped)
    assert f"({name} {real[name]} -> {value})" in str(caught.value)
    assert content(stopped) == before
    result = continue_run(stopped, allow=True).result
    assert result["exact"] is False
    assert stopped.read("meta.json")["inexact"] == [f"from step 5: {name} {real[name]} -> {value}"]


def test_the_same_environment_leaves_no_mark(stopped):
    assert continue_run(stopped, allow=True).result["exact"] is True
    assert "inexact" not in stopped.read("meta.json")


def test_another_number_of_threads_is_refused(stopped):
    torch.set_num_threads(2)
    try:
        with pytest.raises(ConfigError, match="threads 1 -> 2"):
            continue_run(stopped)
    finally:
        torch.set_num_threads(1)


def compile_nothing(module: nn.Module, **_) -> nn.Module:
    """Take the place of a compiler that works."""
    return nn.Sequential(module)


def fail_to_compile(module: nn.Module, **_):
    def forward(*_, **__):
        raise RuntimeError("no working C++ compiler")

    return forward


@pytest.mark.parametrize(
    ("begun", "continued", "change"),
    [
        (compile_nothing, fail_to_compile, "compiled True -> False"),
        (fail_to_compile, compile_nothing, "compiled False -> True"),
    ],
)
def test_a_run_keeps_what_torch_compile_did(tiny, here, monkeypatch, begun, continued, change):
    monkeypatch.setattr(torch, "compile", begun)
    with monkeypatch.context() as patch:
        stop_after(patch, 6)
        with pytest.raises(StoppedError):
            start(
                load_experiment(str(tiny), {"train.compile": True}),
                Request(output=here / "stopped"),
            )
    run = RunDir(here / "stopped")
    assert run.read("meta.json")["compiled"] is (begun is compile_nothing)
    before = content(run)
    monkeypatch.setattr(torch, "compile", continued)
    with pytest.raises(ConfigError, match=rf"not be bit-identical .*\({change}\)"):
        continue_run(run)
    assert content(run) == before
    monkeypatch.setattr(torch, "compile", begun)
    assert continue_run(run).result["exact"] is True


def test_a_run_continues_with_another_torch_compile_if_allowed(stopped, monkeypatch):
    monkeypatch.setattr(torch, "compile", compile_nothing)
    changed = {"train.compile": True}
    assert continue_run(stopped, allow=True, **changed).result["exact"] is False
    (note,) = stopped.read("meta.json")["inexact"]
    assert "compiled False -> True" in note


def test_a_checkpoint_that_does_not_say_whether_it_was_compiled_continues(stopped):
    checkpoint = load_checkpoint(stopped.checkpoints / "5")
    del checkpoint.state["circumstances"]["compiled"]
    save_checkpoint(stopped.checkpoints, checkpoint)
    assert continue_run(stopped).result["exact"] is True


def test_a_finished_run_is_trained_further_and_marked(stopped, here):
    assert continue_run(stopped).result["epochs"] == 4
    with pytest.raises(ConfigError, match="another configuration"):
        continue_run(stopped, **{"train.epochs": 6})
    with pytest.raises(
        ConfigError, match=r"cannot continue with another model\.depth; train a new run"
    ):
        continue_run(stopped, allow=True, **{"model.depth": 3, "train.epochs": 9})
    with pytest.raises(ConfigError, match="no steps left"):
        continue_run(stopped, allow=True, **{"optim.lr": 1e-4})
    further = continue_run(stopped, allow=True, **{"train.epochs": 6})
    assert further.trained
    assert further.result["epochs"] == 6
    assert further.result["exact"] is False
    assert stopped.spec().train.epochs == 6
    assert [record["epoch"] for record in stopped.metrics()] == [1, 2, 3, 4, 5, 6]
    with pytest.raises(ConfigError, match="this run already has 6 epochs"):
        continue_run(stopped, allow=True, **{"train.epochs": 5})
    assert not continue_run(stopped).trained
    assert "from step 20: train.epochs 4 -> 6" in stopped.read("meta.json")["inexact"]


def test_a_kill_between_two_files_keeps_the_mark(stopped, monkeypatch):
    """The mark is written before the new configuration that it is about."""
    with monkeypatch.context() as patch:
        patch.setattr(RunDir, "create", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            continue_run(stopped, allow=True, **{"optim.lr": 1e-4})
    assert stopped.spec().optim.lr == 2e-3
    assert continue_run(stopped).result["exact"] is False


def test_a_trial_reduced_to_weights_is_not_changed(stopped):
    continue_run(stopped)
    keep_weights(stopped.checkpoints)
    before = content(stopped)
    with pytest.raises(InputError, match=r"does not fit config\.yaml"):
        continue_run(stopped, allow=True, **{"train.epochs": 6})
    assert content(stopped) == before


def test_a_checkpoint_without_environment_is_refused(stopped):
    checkpoint = load_checkpoint(stopped.checkpoints / "5")
    del checkpoint.state["circumstances"]
    save_checkpoint(stopped.checkpoints, checkpoint)
    with pytest.raises(InputError, match=r"older than version 0\.8\.0"):
        continue_run(stopped)


@pytest.mark.parametrize(
    "field", ["train.batch_size", "optim.name", "seed", "model.depth", "data.name", "train.kernels"]
)
def test_some_fields_can_never_change(field):
    assert not exactness.may_change(field)


def test_fields_that_keep_the_tensors_may_change():
    for field in ("optim.lr", "train.epochs", "data.augment.mixup"):
        assert exactness.may_change(field)


def test_a_marked_run_is_marked_in_a_result_file(tiny, here, monkeypatch):
    monkeypatch.chdir(here)
    (here / "experiments").mkdir()
    tiny.rename(here / "experiments" / "tiny.yaml")
    calm = start(load_experiment("tiny"), Request(output=here / "calm"))
    assert collect_runs([calm.run]).inexact == ()
    continue_run(calm.run, allow=True, **{"train.epochs": 5})
    assert collect_runs([calm.run]).inexact == (calm.run.name,)


def test_an_exact_continuation_is_exact(stopped, tiny, here):
    continue_run(stopped)
    calm = start(load_experiment(str(tiny)), Request(output=here / "calm"))
    assert_same_run(calm.run, stopped)


@pytest.mark.parametrize(("deterministic", "exact"), [(False, False), (True, True)])
def test_on_a_gpu_only_a_deterministic_training_is_exact(deterministic, exact):
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    with chosen_kernels(gpu, deterministic):
        assert exactness.is_exact({}, gpu) is exact
    assert exactness.is_exact({}, cpu)
    assert not exactness.is_exact({"inexact": ["from step 5"]}, cpu)


def test_another_determinism_is_another_environment(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a GPU")
    gpu, state = torch.device("cuda"), {"precision": "tf32"}
    state["circumstances"] = exactness.numerical_environment(gpu, False)
    here = gpu, False, "tf32", ""
    assert exactness.environment_changes(state, *here) == {}
    with chosen_kernels(gpu, True):
        assert exactness.environment_changes(state, *here) == {"deterministic": (False, True)}
    with pytest.raises(ConfigError, match="trained in tf32, but would continue in fp32"):
        exactness.environment_changes(state, gpu, False, "fp32", "")


def jumps(messages: list[str]) -> list[str]:
    return [each for each in messages if "the learning rate rises" in each]


def test_a_learning_rate_that_rises_in_a_longer_training_is_named(stopped):
    """A continuation as planned says nothing."""
    told: list[str] = []
    continue_run(stopped, on_message=told.append)
    assert jumps(told) == []
    continue_run(stopped, allow=True, on_message=told.append, **{"train.epochs": 5})
    (note,) = jumps(told)
    rates = re.findall(r"from (\S+) to (\S+) at step 20", note)
    last = [record["lr"] for record in stopped.metrics() if record["step"] == 20]
    assert [float(rate) for rate in rates[0]] == [pytest.approx(last[0], rel=0.1), 2.9e-4], note
