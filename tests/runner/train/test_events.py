"""Events travel from a worker to the driver as lines of JSON."""

import pytest

from vitcli.runner.train.events import (
    KINDS,
    Ended,
    EpochDone,
    Message,
    Progress,
    Started,
    Stopping,
    TrialEvent,
    from_line,
    to_line,
)

EVENTS = [
    Started(
        folder="runs/mine/full/seed0",
        task="classify",
        data="shapes",
        device="cpu",
        precision="fp32",
        kernels="torch",
        parameters=1,
        num_train=2,
        num_test=3,
        epochs=4,
        steps_per_epoch=5,
        first_step=6,
    ),
    Progress(
        epoch=1,
        batch=2,
        step=3,
        scalars={"loss": 0.5},
        lr=0.1,
        images_per_second=10.0,
        seconds_left=1.0,
        gpu_bytes=None,
    ),
    EpochDone(record={"step": 1}),
    Message(text="a note"),
    Stopping(),
    Ended(state="finished", score=0.5),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_is_the_same_after_its_line(event):
    line = to_line(TrialEvent("full/seed0", event))
    assert line.count("\n") == 1
    assert from_line(line) == TrialEvent("full/seed0", event)


def test_every_kind_of_event_was_sent():
    assert {type(event) for event in EVENTS} == set(KINDS.values())
