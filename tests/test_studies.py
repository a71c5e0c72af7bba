"""Shipped studies build, variants change what they name, pre-trainings take equal compute."""

from functools import cache
from pathlib import Path

import pytest
import torch

from vitcli.core.data.batches import num_batches
from vitcli.core.spec import ExperimentSpec, VitSpec
from vitcli.core.spec.slots import INITS
from vitcli.runner.data.load import describe_data
from vitcli.runner.experiment.build import encoder_of, new_module
from vitcli.runner.experiment.diff import differences
from vitcli.runner.experiment.listing import is_study
from vitcli.runner.experiment.sizes import fit_to_data
from vitcli.runner.study.definition import Study, load_study
from vitcli.runner.study.plan import model_sizes
from vitcli.runner.train.flops import count_step_flops, random_batch

FOLDER = Path(__file__).parents[1] / "experiments"
STUDIES = sorted(path for path in FOLDER.glob("*.yaml") if is_study(path))
SIX = {
    "baseline": set(),
    "no-positional-encoding": {"model.pos_embed"},
    "single-head": {"model.num_heads"},
    "no-residual": {"model.residual"},
    "no-layernorm": {"model.norm"},
    "no-ffn": {"model.ffn"},
}
TABLES = [f"ablation-{name}" for name in ("quickstart", "cifar10-tiny", "cifar10-short", "cifar10")]
REPORT = {"no-positional-encoding": -8.7, "single-head": -3.2, "no-residual": -12.1,
          "no-layernorm": -15.3, "no-ffn": -6.4}  # fmt: skip


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_every_row_builds_and_differs(path):
    study = load_study(str(path))
    sizes = model_sizes(study)
    assert list(sizes) == [variant.name for variant in study.variants]
    assert len({variant.spec for variant in study.variants}) == len(study.variants)
    assert len(study.seeds) >= (2 if study.parts or path.stem.startswith("study-") else 3)
    assert study.threads == 1


@pytest.mark.parametrize("name", TABLES)
def test_each_row_changes_the_field_it_names_and_has_the_drop_of_the_source(name):
    study = load_study(name)
    base = study.baseline.spec
    assert {each.name: {*differences(base, each.spec)} for each in study.variants} == SIX
    assert (study.reference is None) == (name == "ablation-quickstart")
    if rows := study.reference and study.reference.rows:
        full = rows["baseline"].accuracy
        assert full == 93.1
        assert {row: round(rows[row].accuracy - full, 9) for row in REPORT} == REPORT


def test_the_fair_study_keeps_the_parameter_count():
    study = load_study("ablation-fair")
    sizes = model_sizes(study)
    assert all(abs(size / sizes["baseline"] - 1) < 0.05 for size in sizes.values())
    taken = model_sizes(load_study("ablation-cifar10-tiny"))
    assert any(abs(size / taken["baseline"] - 1) > 0.3 for size in taken.values()), "the control"
    for variant in study.variants:
        assert SIX[variant.name] <= set(differences(study.baseline.spec, variant.spec))


SEEDED = (
    *("ablation-quickstart", "ablation-heads", "ablation-norm", "study-attention"),
    *("study-architectures-tiny", "study-ingredients", "study-pretraining-100"),
)
"""Studies of each kind of variant; tests/core/nn/test_init.py has every kind of tensor."""


@pytest.mark.parametrize("name", SEEDED)
def test_variants_of_one_seed_start_with_the_baselines_weights(name):
    """Tensors of the same name and shape must be equal, or seeds would not pair.

    Variants that change the scheme of the initial weights differ in nothing else. A scheme that
    shapes each head's attention gives other matrices to another number of heads.
    """
    study = load_study(name)
    base = initial_tensors(study, study.baseline.name)
    family = study.baseline.spec.model.family
    for variant in study.variants[1:]:
        changed = differences(study.baseline.spec, variant.spec)
        if variant.spec.model.family != family or "model.init" in changed:
            continue
        ours = initial_tensors(study, variant.name)
        common = [n for n in base if n in ours and base[n].shape == ours[n].shape]
        unequal = {name for name in common if not base[name].equal(ours[name])}
        if "model.num_heads" in changed and INITS[variant.spec.model.init].factors_attention:
            of_heads = ("qkv.weight", "qkv.bias", "proj.weight")
            unequal = {name for name in unequal if not name.endswith(of_heads)}
        assert not unequal, variant.name
        if variant.spec.model.embed_dim == study.baseline.spec.model.embed_dim:
            drawn = [name for name in common if base[name].unique().numel() > 1]
            assert drawn, f"{variant.name}: nothing is in common, so nothing was compared"


def initial_tensors(study: Study, name: str) -> dict[str, torch.Tensor]:
    """Return an encoder's tensors at the start of a training with seed 0.

    Of blocks, there are at most two, or as many as the task names.
    """
    spec = resolved(study, name)
    if isinstance(spec.model, VitSpec):
        needed = max(2, *getattr(spec.task, "layers", ()), 0)
        spec = spec.replace(model=spec.model.replace(depth=min(needed, spec.model.depth)))
    return encoder_of(spec, new_module(spec)).state_dict()


def resolved(study: Study, name: str) -> ExperimentSpec:
    (variant,) = [variant for variant in study.variants if variant.name == name]
    return fit_to_data(variant.spec, describe_data(variant.spec.data))


PRETRAINING = {
    "study-pretraining-100": 100,
    "study-pretraining": 1000,
    "study-pretraining-all": None,
}
TOLERANCE = 0.01


@cache
def train_flops(spec: ExperimentSpec) -> int:
    """Return the operations of a training, without its pre-training."""
    facts = describe_data(spec.data)
    spec = fit_to_data(spec, facts)
    count = num_batches(facts.num_train, spec.train.batch_size)
    steps = spec.train.epochs * min(count, spec.train.limit_batches or count)
    return steps * count_step_flops(spec, random_batch(spec, new_module(spec)))


def test_every_variant_takes_the_same_compute():
    """The studies share pre-trainings, which are counted once."""
    for study in map(load_study, PRETRAINING):
        totals = {}
        for variant in study.variants:
            first = variant.spec.pretraining
            totals[variant.name] = train_flops(variant.spec) + (train_flops(first) if first else 0)
        scratch = totals.pop("scratch")
        assert totals == {name: pytest.approx(scratch, rel=TOLERANCE) for name in totals}


@pytest.mark.parametrize("name", PRETRAINING)
def test_every_variant_sees_the_same_labels_and_the_same_model(name):
    study = load_study(name)
    baseline = study.baseline.spec
    assert baseline.data.labels == PRETRAINING[study.name]
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
    for name in PRETRAINING:
        for variant in load_study(name).variants:
            first = variant.spec.pretraining
            if first and not first.task.row.uses_labels:
                found.setdefault(variant.name, set()).add(first.model_dump_json())
    assert len(found) == 3
    assert {len(each) for each in found.values()} == {1}
