"""The estimate follows the settings of an experiment."""

import pytest

from vitcli.runner.errors import ConfigError
from vitcli.runner.experiment.config import load_experiment
from vitcli.runner.train.estimate import make_estimate


def estimate(**changes):
    named = {key.replace("__", "."): value for key, value in changes.items()}
    return make_estimate(load_experiment("cifar10-tiny", named))


def test_accumulation_and_recomputing_save_memory():
    whole = estimate().memory_bytes
    assert estimate(train__accumulate=4).memory_bytes < 0.4 * whole
    assert estimate(train__grad_checkpointing=True).memory_bytes < 0.6 * whole


def test_time_and_steps_follow_the_epochs():
    one = estimate(train__epochs=1)
    assert one.steps_per_epoch == 390
    assert estimate(train__limit_batches=7).steps_per_epoch == 7
    assert one.seconds > 0


def test_a_batch_larger_than_the_data_is_refused():
    with pytest.raises(ConfigError, match="do not fill one batch"):
        estimate(train__batch_size=60_000)
