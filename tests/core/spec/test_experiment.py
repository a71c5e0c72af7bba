"""Which new trainings are refused, although their spec is valid."""

import pytest

from vitcli.core.spec import ExperimentSpec


@pytest.mark.parametrize(
    ("task", "is_refused"),
    [
        ({"name": "clip"}, True),
        ({"name": "fusion", "fusion": "late", "contrast": 0.1}, True),
        ({"name": "fusion", "fusion": "late"}, False),
        ({"name": "classify"}, False),
    ],
)
def test_parts_of_a_batch_are_refused_where_a_loss_compares_its_images(task, is_refused):
    """Each part would be compared with itself only, which is another loss."""
    for parts in (1, 2):
        spec = ExperimentSpec.model_validate({"task": task, "train": {"accumulate": parts}})
        wanted = "train.accumulate: task" if is_refused and parts > 1 else ""
        assert (spec.refusal or "").startswith(wanted)
        assert bool(spec.refusal) == bool(wanted)


def test_a_pretraining_is_refused_as_a_training_is():
    before = {"task": {"name": "clip"}, "train": {"accumulate": 2}}
    spec = ExperimentSpec.model_validate({"pretrain": before})
    assert (spec.refusal or "").startswith("pretrain.train.accumulate: task 'clip'")
