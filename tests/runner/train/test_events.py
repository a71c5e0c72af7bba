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

STARTED = dict.fromkeys(Started.__dataclass_fields__, 1) | {"folder": "runs/mine/full/seed0"}
PROGRESS = dict.fromkeys(Progress.__dataclass_fields__, 1) | {"scalars": {"loss": 0.5}}
EVENTS = [
    Started(**STARTED),
    Progress(**PROGRESS | {"gpu_bytes": None}),
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
