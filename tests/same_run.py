"""Comparison of two runs that must have bit-identical results."""

from vitcli.runner.run.checkpoint import latest_checkpoint
from vitcli.runner.run.folder import RunDir


def final_tensors(run: RunDir) -> dict:
    checkpoint = latest_checkpoint(run.checkpoints, print)
    assert checkpoint is not None
    return checkpoint.tensors


def assert_same_run(
    one: RunDir, other: RunDir, measures: tuple[str, ...] = ("test_accuracy",)
) -> None:
    """Check that weights, averages, optimiser state and metrics (without times) are equal."""
    left, right = final_tensors(one), final_tensors(other)
    assert left.keys() == right.keys()
    assert all(left[name].equal(right[name]) for name in left)
    timeless = [
        [{k: v for k, v in record.items() if k != "images_per_second"} for record in run.metrics()]
        for run in (one, other)
    ]
    assert timeless[0] == timeless[1]
    for name in measures:
        assert one.read("result.json")[name] == other.read("result.json")[name]
