"""Steps that the device controls: what the host does not read, and what a CUDA graph replays."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from tests.core.ranked import SMALL
from tests.core.trainings import train_state
from tests.plugin_rows import of_task
from vitcli.core.spec import OPTIMIZERS, TASKS
from vitcli.core.spec.task import DEFAULT_TASK
from vitcli.core.train import training as trainings
from vitcli.core.train.training import Training
from vitcli.runner.run.checkpoint import Checkpoint


class Direct:
    """Calls the function that a CUDA graph would replay."""

    def __init__(self, optimizers, on_message) -> None:
        pass

    def __call__(self, function, *inputs):
        return function(*inputs)

    def fill(self, values):
        return dict(values)

    def forget(self) -> None:
        pass


PERFORMER = {"attention": "performer", "performer_redraw": 2}
Changes = dict[str, dict[str, Any]]
HALF = torch.float16
CASES: dict[str, tuple[Changes, torch.dtype | None]] = {
    **{name: ({"optim": {"name": name}}, None) for name in OPTIMIZERS},
    **{f"{name} fp16": ({"optim": {"name": name}}, HALF) for name in OPTIMIZERS},
    "average": ({"train": {"ema_decay": 0.9}}, None),
    "average of batch norm": ({"model": {"norm": "batch_norm"}, "train": {"ema_decay": 0.9}}, None),
    "accumulate": ({"train": {"accumulate": 2}}, HALF),
    "no clipping": ({"optim": {"max_grad_norm": None}}, None),
    "dropout": ({"model": {"proj_drop": 0.3}}, None),
    "recomputed": ({"train": {"grad_checkpointing": True}}, None),
    "mixed at first": ({"augment": {"mixup": 0.8, "mix_off_epoch": 1}}, None),
    "teacher": ({"task": {"name": "distil", "standardize": True}}, HALF),
    "masked": ({"task": {"name": "mae"}}, None),
    "masked beside labels": ({"task": {"name": "ssat"}, "augment": {"flip": "random"}}, None),
    "augmented": ({"augment": {"crop_padding": 2, "flip": "random", "erasing": 0.5}}, None),
    "new random features": ({"model": PERFORMER, "train": {"ema_decay": 0.9}}, None),
}


def trained(changes: Changes, epochs: int = 2, **options) -> tuple[Training, list[Any]]:
    """Return a trained state, and the means of each epoch and the learning rate of each step."""
    state, reports = train_state(changes, **options), []
    for epoch in range(epochs):
        reports.append([step.lr for step in state.run_epoch(epoch)])
        reports.append(list(state.take_means().values()))
    return state, reports


def joined(state: Training, prefix: str) -> Tensor:
    found = [t.flatten() for name, t in state.tensors().items() if name.startswith(prefix)]
    return torch.cat([t.double() for t in found])


@pytest.mark.parametrize("case", [of_task(changes, name) for name, (changes, _) in CASES.items()])
def test_a_graph_replays_the_steps_that_the_host_controls(case, monkeypatch):
    """They differ by rounding: a graph reads learning rates and decays in fp32."""
    changes, autocast = CASES[case]
    plain, reports = trained(changes, autocast=autocast)
    monkeypatch.setattr(trainings, "Graphs", Direct)
    graphed, same = trained(changes, graphs=True, autocast=autocast)
    assert_close(same, reports, rtol=1e-3, atol=1e-5)
    assert plain.tensors().keys() == graphed.tensors().keys()
    for prefix in ("model.", "ema.") if plain.ema else ("model.",):
        ends, start = joined(plain, prefix), joined(train_state(changes), prefix)
        tolerance = 0.05 if autocast else 0.002
        assert (joined(graphed, prefix) - ends).norm() < tolerance * (ends - start).norm()
    if plain.scaler:
        assert graphed.scaler.state_dict() == plain.scaler.state_dict()


@pytest.mark.plugin("clip")
@pytest.mark.parametrize("graphs", [False, True])
def test_the_average_of_weights_sees_what_the_task_changes_after_the_optimisers(
    graphs, monkeypatch
):
    """The limit of CLIP's scale holds for the weights that are averaged, too."""
    monkeypatch.setattr(trainings, "Graphs", Direct)
    state = train_state({"task": {"name": "clip"}, "train": {"ema_decay": 0.5}}, graphs=graphs)
    limit = state.module.logit_scale.detach().clone().fill_(100).log()
    state.ema.model.logit_scale.data.copy_(limit)
    state.module.logit_scale.data.copy_(limit + 1)
    next(iter(state.run_epoch(0)))
    assert_close(state.ema.model.logit_scale.data, limit)


def test_steps_that_fp16_skips_are_counted_and_not_averaged():
    """The gradient of two of four steps is infinite."""
    state = train_state({}, autocast=HALF)
    due = iter([True, False, True, False])
    state.module.head.bias.register_hook(lambda g: g * float("inf") if next(due) else g)
    norms = [step.scalars["grad_norm"].item() for step in state.run_epoch(0)]
    means = state.take_means()
    assert means["skipped_steps"] == 2
    assert means["grad_norm"] == pytest.approx((norms[1] + norms[3]) / 2)
    assert "skipped_steps" not in train_state({}).take_means()


def test_a_checkpoint_without_the_number_of_skipped_steps_is_read():
    state = train_state({}, autocast=HALF)
    list(state.run_epoch(0))
    stored = state.tensors()
    stored["progress.sums"] = stored["progress.sums"][:-1].clone()
    resumed = train_state({}, autocast=HALF)
    resumed.load(4, Checkpoint(4, stored, {}).part, state.scaler.state_dict())
    means = resumed.take_means()
    assert (means["loss"], means["skipped_steps"]) == (state.take_means()["loss"], 0)


@pytest.mark.parametrize(
    ("name", "graphs"), [*((name, False) for name in TASKS), (DEFAULT_TASK, True)]
)
def test_attention_draws_new_features_in_every_task(name, graphs, monkeypatch):
    monkeypatch.setattr(trainings, "Graphs", Direct)
    model = {"attention": "performer", "performer_redraw": 3, "pool": "mean"}
    state = train_state({"model": model, "task": {"name": name, **SMALL[name]}}, graphs=graphs)
    names = [key for key in state.module.state_dict() if key.endswith("projection")]
    steps = iter(state.run_epoch(0))

    def features() -> list[Tensor]:
        return [state.module.state_dict()[key].clone() for key in names]

    start = features()
    for _ in range(3):
        next(steps)
    assert names
    assert_close(features(), start, rtol=0, atol=0)
    next(steps)
    assert not any(map(torch.equal, features(), start))


def test_a_graph_goes_on_inside_an_epoch(monkeypatch):
    """After a resume at step 2, the third step reads its own learning rate and its own batch."""
    monkeypatch.setattr(trainings, "Graphs", Direct)
    changes: Changes = {"optim": {"name": "muon"}, "train": {"ema_decay": 0.9}}
    whole, stopped, resumed = (train_state(changes, graphs=True) for _ in range(3))
    list(whole.run_epoch(0))
    steps = stopped.run_epoch(0)
    next(steps)
    next(steps)
    resumed.load(2, Checkpoint(2, stopped.tensors(), {}).part, None)
    list(resumed.run_epoch(0))
    for name, tensor in resumed.tensors().items():
        assert torch.equal(tensor, whole.tensors()[name]), name
