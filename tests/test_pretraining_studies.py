"""The studies of pre-training: every variant takes the same compute and sees the same labels."""

import pytest

from vitcli.core.data.batches import num_batches
from vitcli.core.spec import ExperimentSpec
from vitcli.runner.data.load import describe_data
from vitcli.runner.experiment.build import new_module
from vitcli.runner.experiment.sizes import fit_to_data
from vitcli.runner.study.definition import Study, load_study
from vitcli.runner.train.flops import count_step_flops, random_batch

STUDIES = {"study-pretraining-100": 100, "study-pretraining": 1000, "study-pretraining-all": None}
TOLERANCE = 0.01


@pytest.fixture(params=STUDIES)
def study(request) -> Study:
    return load_study(request.param)


def train_flops(spec: ExperimentSpec) -> int:
    """Return the operations of a training, without its pre-training."""
    facts = describe_data(spec.data)
    spec = fit_to_data(spec, facts)
    count = num_batches(facts.num_train, spec.train.batch_size)
    steps = spec.train.epochs * min(count, spec.train.limit_batches or count)
    return steps * count_step_flops(spec, random_batch(spec, new_module(spec)))


def test_every_variant_takes_the_same_compute(study):
    totals = {}
    for variant in study.variants:
        first = variant.spec.pretraining
        totals[variant.name] = train_flops(variant.spec) + (train_flops(first) if first else 0)
    scratch = totals.pop("scratch")
    assert totals == {name: pytest.approx(scratch, rel=TOLERANCE) for name in totals}


def test_every_variant_sees_the_same_labels_and_the_same_model(study):
    baseline = study.baseline.spec
    assert baseline.data.labels == STUDIES[study.name]
    for variant in study.variants:
        assert variant.spec.data == baseline.data
        assert variant.spec.model == baseline.model
        assert variant.spec.train.precision == "fp32"
        if first := variant.spec.pretraining:
            own = baseline.data.labels if first.task.row.uses_labels else None
            assert first.data.labels == own
            assert first.train.precision == "fp32"


def test_the_studies_share_the_pre_trainings_without_labels():
    found = {}
    for name in STUDIES:
        for variant in load_study(name).variants:
            first = variant.spec.pretraining
            if first and not first.task.row.uses_labels:
                found.setdefault(variant.name, set()).add(first.model_dump_json())
    assert len(found) == 3
    assert {len(each) for each in found.values()} == {1}
