"""Comparison of two runs that must have bit-identical results."""

from vitcli.runner.run.checkpoint import latest_checkpoint
from vitcli.runner.run.folder import RunDir
from vitcli.runner.run.record import read_record


def final_tensors(run: RunDir) -> dict:
    checkpoint = latest_checkpoint(run.checkpoints, print)
    assert checkpoint is not None
    return checkpoint.tensors


def assert_same_run(
    one: RunDir, other: RunDir, measures: tuple[str, ...] = ("test_accuracy",)
) -> None:
    left, right = final_tensors(one), final_tensors(other)
    assert left.keys() == right.keys()
    assert all(left[name].equal(right[name]) for name in left)
    records = [read_record(run) for run in (one, other)]
    timeless = [
        [{k: v for k, v in line.items() if k != "images_per_second"} for line in record.metrics]
        for record in records
    ]
    assert timeless[0] == timeless[1]
    for name in measures:
        assert records[0].result[name] == records[1].result[name]
