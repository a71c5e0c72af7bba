"""Training steps with masks: what a CUDA graph replays, and what the host does not read."""

import pytest
from torch.testing import assert_close

from tests.core.objectives.ssat.test_ssat import with_labels
from tests.core.train.test_executor import Direct, NoReading, joined
from tests.core.trainings import data_set, train_state
from vitcli.core.train import training as states

CASES = {
    "mae": ({"name": "mae"}, data_set),
    "ssat": ({"name": "ssat"}, data_set),
    "ssat with few labels": ({"name": "ssat"}, with_labels),
}
AUGMENT = {"crop_padding": 2, "flip": "random"}


@pytest.mark.parametrize("case", CASES)
def test_a_graph_replays_the_steps_that_the_host_controls(case, monkeypatch):
    task, data = CASES[case]
    changes = {"task": task, "augment": AUGMENT, "train": {"batch_size": 8}}
    plain, start = (train_state(changes, data=data()) for _ in range(2))
    monkeypatch.setattr(states, "Graphs", Direct)
    graphed = train_state(changes, data=data(), graphs=True)
    for epoch in range(2):
        with NoReading():
            plain_steps = [step.step for step in plain.run_epoch(epoch)]
        assert [step.step for step in graphed.run_epoch(epoch)] == plain_steps
        assert_close(plain.take_means(), graphed.take_means(), rtol=1e-3, atol=1e-5)
    ends, begin = joined(plain, "model."), joined(start, "model.")
    assert (joined(graphed, "model.") - ends).norm() < 0.002 * (ends - begin).norm()
