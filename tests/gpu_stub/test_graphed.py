"""The steps of a training on a GPU: launches, waits and copies, as a graph and one by one."""

from typing import Any

import pytest

from tests.core.specs import BASE
from tests.gpu_stub.graphed import CASES
from tests.gpu_stub.steps import MOST_WITH_TEACHER, TEACHERS
from tests.gpu_stub.stub import ask_stub

BLOCKS = BASE.depth
"""Number of blocks; in the case ``performer`` each draws new random features in every step."""


@pytest.fixture(scope="module")
def counted(tmp_path_factory) -> dict[str, Any]:
    code = "from tests.gpu_stub.graphed import count_trainings; count_trainings()"
    found: dict[str, Any] = ask_stub(code, cwd=tmp_path_factory.mktemp("graphed"))
    return found


@pytest.mark.parametrize("case", CASES)
def test_a_step_is_one_graph(counted, case):
    """Besides the graph, only what cannot be inside: the seed of dropout, new random features."""
    found = counted[f"{case}, graphs True"]
    assert found["launches"] <= 3
    assert (found["waits"], found["unpinned"], found["messages"]) == (0, 0, []), found["places"]
    assert found["copies"] == BLOCKS * (case == "performer")


@pytest.mark.parametrize("case", CASES)
def test_a_step_without_graphs_neither_waits_nor_copies_from_the_host(counted, case):
    found = counted[f"{case}, graphs False"]
    assert found["launches"] > 50
    assert (found["waits"], found["unpinned"]) == (0, 0), found["places"]
    assert found["copies"] == BLOCKS * (case == "performer")


def test_a_step_of_every_shipped_experiment_is_one_graph(tmp_path):
    code = "from tests.gpu_stub.graphed import count_experiments; count_experiments()"
    found = ask_stub(code, cwd=tmp_path)
    assert len(found) > 10
    most = dict.fromkeys(found, 3) | dict.fromkeys(TEACHERS, MOST_WITH_TEACHER)
    assert {name: row for name, row in found.items() if row[0] > most[name] or row[1]} == {}


REFUSED = """
import json
import torch
from tests.core.trainings import train_state
from vitcli.core.train import optim
from vitcli.core.objectives.classify import Classify

place, name = {place}, "{name}"
original = getattr(place, name)

def read(*args):
    found = original(*args)
    (found["loss"] if isinstance(found, dict) else found).item()
    return found

setattr(place, name, read)
messages = []
changes = {{"model": {{"proj_drop": 0.1}}, "augment": {{"mixup": 0.8, "mix_off_epoch": 1}}}}
half = torch.float16
state = train_state(changes, "cuda", half, graphs=True, on_message=messages.append)
steps = [step.step for epoch in range(3) for step in state.run_epoch(epoch)]
print(json.dumps([steps, messages]))
"""


@pytest.mark.parametrize(("place", "name"), [("Classify", "losses"), ("optim", "total_norm")])
def test_a_step_that_cannot_be_captured_is_taken_eagerly(place, name, tmp_path):
    """It reads a number on the host, in the forward pass or between scaling and optimiser."""
    steps, messages = ask_stub(REFUSED.format(place=place, name=name), cwd=tmp_path)
    assert steps == list(range(1, 13))
    (message,) = messages
    assert message.startswith("CUDA graphs failed, training without them: ")
    assert "captur" in message
