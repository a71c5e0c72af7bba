"""The estimated time of a study."""

import pytest

from vitcli.runner.study.plan import total_seconds


@pytest.mark.parametrize(
    ("trials", "count", "total"),
    [
        ([3.0, 3.0, 3.0], 1, 9.0),
        ([3.0, 3.0, 3.0], 2, 6.0),  # the third trial waits
        ([4.0, 1.0, 2.0, 1.0], 2, 4.0),  # one worker trains three short trials
        ([], 1, 0.0),
    ],
)
def test_a_free_worker_takes_the_next_trial(trials, count, total):
    assert total_seconds(trials, count) == total
