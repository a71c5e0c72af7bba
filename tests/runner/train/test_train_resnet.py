"""A ResNet is trained, continued, measured and estimated like a ViT."""

from pathlib import Path

import pytest
import torch

from tests.same_run import assert_same_run, final_tensors
from tests.stopping import stop_after
from vitcli.core.train.training import Training
from vitcli.runner.errors import ConfigError, StoppedError
from vitcli.runner.evaluate.predict import Predictor
from vitcli.runner.evaluate.scores import evaluate_run
from vitcli.runner.evaluate.weights import load_model
from vitcli.runner.experiment.config import Experiment, load_experiment
from vitcli.runner.run.folder import RunDir
from vitcli.runner.train.estimate import make_estimate
from vitcli.runner.train.start import Request, start

TEXT = """
model: {family: resnet18}
data: {name: "imagefolder:%s", augment: {crop_padding: 1, flip: random}}
optim: {name: sgd, lr: 0.01, nesterov: true, max_grad_norm: null}
train: {epochs: 2, batch_size: 8, limit_batches: 2, ema_decay: 0.5}
"""


@pytest.fixture
def experiment(pictures, here) -> Experiment:
    """Return an experiment on 8x8 pictures of two classes: 2 epochs of 2 steps."""
    (here / "small.yaml").write_text(TEXT % pictures)
    return load_experiment("./small.yaml")


def run(experiment: Experiment, folder: str, **options) -> RunDir:
    return start(experiment, Request(output=Path(folder), **options)).run


def stopped_run(experiment: Experiment, monkeypatch, looks: int) -> RunDir:
    with monkeypatch.context() as patch:
        stop_after(patch, looks)
        with pytest.raises(StoppedError):
            run(experiment, "stopped")
    return RunDir(Path("stopped"))


@pytest.mark.parametrize(("looks", "step"), [(2, 2), (4, 3)])
def test_a_run_stopped_between_or_inside_epochs_ends_with_the_same_bits(
    experiment, monkeypatch, looks, step
):
    calm = run(experiment, "calm")
    stopped = stopped_run(experiment, monkeypatch, looks)
    assert stopped.status() == {"state": "interrupted", "step": step, "reason": "signal 15"}
    run(experiment, "stopped", resume=True)
    assert_same_run(calm, stopped)
    statistics = [name for name in final_tensors(calm) if "running_" in name]
    assert len(statistics) == 2 * 2 * 20  # mean and variance, of the model and of its average


def test_the_bits_depend_on_the_running_statistics(experiment, monkeypatch):
    """Control: if they were not restored, the test above would notice."""
    calm = run(experiment, "calm")
    stopped_run(experiment, monkeypatch, 2)
    original = Training.load

    def forgetful(self, *words):
        original(self, *words)
        for module in self.module.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.reset_running_stats()

    monkeypatch.setattr(Training, "load", forgetful)
    run(experiment, "stopped", resume=True)
    with pytest.raises(AssertionError):
        assert_same_run(calm, RunDir(Path("stopped")))


def test_a_resnet_is_loaded_evaluated_and_used_like_any_run(experiment, pictures):
    done = run(experiment, "done")
    model = load_model(done)
    assert not model.training
    measured = evaluate_run("done")
    assert measured.parameters == 11_173_962 - 8 * 513 == done.read("result.json")["parameters"]
    picture = next((pictures / "test" / "dark").iterdir())
    prediction = Predictor(done).predict(str(picture))
    assert {name for name, _ in prediction.top} == {"dark", "bright"}
    assert sum(share for _, share in prediction.top) == pytest.approx(1)


def test_the_head_is_replaced_if_the_classes_differ(experiment, pictures, here):
    first = run(experiment, "first")
    other = pictures / "train" / "other"
    other.mkdir()
    for path in sorted((pictures / "train" / "dark").iterdir())[:20]:
        path.rename(other / path.name)
    talk: list[str] = []
    again = load_experiment("./small.yaml", {"train.init": "first", "train.epochs": 0})
    second = start(again, Request(output=here / "second"), on_message=talk.append).run
    assert "starting from first with a new head (3 classes)" in talk
    left, right = load_model(first).state_dict(), load_model(second).state_dict()
    assert {name for name in left if not left[name].equal(right[name])} == {
        "head.weight",
        "head.bias",
    }


def test_weights_of_another_family_do_not_fit(experiment, tiny):
    run(experiment, "first")
    with pytest.raises(ConfigError, match="do not fit"):
        start(load_experiment(str(tiny), {"train.init": "first"}), Request(output=Path("no")))


def test_the_estimate_counts_parameters_by_stage(experiment):
    estimate = make_estimate(experiment)
    assert list(estimate.parts) == ["stem", "stage 1", "stage 2", "stage 3", "stage 4", "head"]
    assert sum(estimate.parts.values()) == estimate.parameters
    assert estimate.steps_per_epoch == 2
    assert "stage 4" in estimate.as_text()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"optim.name": "muon"}, "optim.name: muon takes the matrices of transformer blocks"),
        ({"train.grad_checkpointing": True}, "'resnet18' has no blocks to recompute"),
        ({"model.patch_size": 8}, "model: family 'resnet18' has no patch_size; leave it out"),
        ({"model.family": "resnet19"}, "model.family: should be 'vit', 'resnet18', 'swin'"),
        ({"train.accumulate": 8}, "train.accumulate: batch norm would see only a part"),
        ({"train.batch_size": 1}, "batch norm needs 2 images at a time"),
    ],
    ids=str,
)
def test_an_impossible_setting_is_refused_in_one_line(experiment, changes, message):
    with pytest.raises(ConfigError) as caught:
        load_experiment(str(experiment.path), changes)
    assert message in str(caught.value)
    assert str(caught.value).startswith("--set: ")
    assert "\n" not in str(caught.value)
