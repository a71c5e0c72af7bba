"""Batches, epochs, checkpoints and evaluations on the stub GPU: few launches, copies and waits."""

from typing import Any

import pytest

from tests.gpu_stub.stub import ask_once, ask_stub

IMPORT = "import json; from tests.gpu_stub import data\n"
LAUNCHES = {"none": 30, "one": 110, "two": 150}
"""Number of rounds of a policy -> most launches of an uncompiled batch, other augmentation
included."""
COMPILED = {"cifar10-small": 5, "cifar10-strong": 35}
"""Experiment -> most launches of a compiled batch."""


ASK = f"{IMPORT}print(json.dumps({{'policies': data.policies(), 'save': data.checkpoint()}}))"


@pytest.fixture
def policies() -> dict[str, Any]:
    found: dict[str, Any] = ask_once("data", ASK)["policies"]
    return found


@pytest.mark.parametrize("rounds", LAUNCHES)
def test_a_batch_needs_few_launches_no_copy_and_no_wait(policies, rounds):
    batch = policies[rounds]["batch"]
    assert 0 < batch.pop("launches") <= LAUNCHES[rounds]
    assert set(batch.values()) == {0}
    assert policies[rounds]["refused"] == 0


@pytest.mark.parametrize("rounds", LAUNCHES)
def test_an_epoch_begins_with_one_pinned_copy_for_each_table(policies, rounds):
    beginning = policies[rounds]["beginning"]
    assert beginning["to_device"] == policies[rounds]["tables"] + 2  # scale and shift
    assert beginning["unpinned"] == beginning["waits"] == beginning["to_host"] == 0


@pytest.mark.ci
@pytest.mark.parametrize("name", COMPILED)
def test_a_compiled_batch_needs_fewer_launches(name, tmp_path):
    code = f"{IMPORT}print(json.dumps(data.compiled_batches({name!r})))"
    found = ask_stub(code, cwd=tmp_path)
    assert found.pop("messages") == []
    assert 0 < found.pop("launches") <= COMPILED[name]
    assert set(found.values()) == {0}


def test_a_checkpoint_waits_once_for_all_tensors():
    found = ask_once("data", ASK)["save"]
    assert found["tensors"] > 50
    assert found["waits"] <= 2
    assert found["unpinned"] == 0


def test_a_training_draws_ahead_and_waits_once_for_outputs_and_checkpoints(tiny, here):
    code = f"{IMPORT}print(json.dumps(data.training({str(tiny)!r})))"
    found = ask_stub(code, cwd=here)
    assert found["drawn"] == ["0 here", "1 thread", "2 thread", "0 here"]
    assert found["left"] == []
    assert found["waits"]["test_outputs"] == [1, 1, 1, 0]  # the last outputs are used again
    assert set(found["waits"]["save"]) == {1}
