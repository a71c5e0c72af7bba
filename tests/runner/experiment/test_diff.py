"""Differences between configurations, of two model families too."""

import pytest

from tests.core.specs import REQUIRED
from vitcli.core.spec import FAMILIES, DataSpec, ExperimentSpec, PretrainSpec, model_spec
from vitcli.runner.experiment.config import check, load_experiment
from vitcli.runner.experiment.diff import changed_fields, differences, with_data_defaults
from vitcli.runner.experiment.yaml_text import Document
from vitcli.runner.study.definition import load_study


def experiment(family: str = "vit", **fields) -> ExperimentSpec:
    return ExperimentSpec(model=model_spec(family=family, **{**REQUIRED[family], **fields}))


def test_a_field_that_one_family_lacks_differs_where_it_is_set():
    vit, swin = experiment(embed_dim=96, mlp_dim=48), experiment("swin", embed_dim=96)
    assert differences(vit, swin) == {
        "model.family": ("vit", "swin"),
        "model.pool": ("cls", "mean"),
        "model.pos_embed": ("learned", "relative"),
        "model.mlp_dim": (48, None),
        "model.depths": (None, (2, 2)),
        "model.window_size": (None, 2),
    }
    turned = {name: (right, left) for name, (left, right) in differences(swin, vit).items()}
    assert turned == differences(vit, swin)
    assert differences(vit, vit) == {}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_changed_fields_make_the_experiment_again(family):
    spec = experiment(family)
    plain = {k: list(v) if isinstance(v, tuple) else v for k, v in changed_fields(spec).items()}
    assert plain.get("model.family", "vit") == family
    model = {name.partition(".")[2]: value for name, value in plain.items()}
    assert check({"model": model}, Document("", "x")) == spec


def test_a_part_that_only_one_has_differs_in_its_own_fields():
    first = {"pretrain.task.name": "mae", "pretrain.train.epochs": 2}
    plain = load_experiment("quickstart").spec
    with_part = load_experiment("quickstart", first).spec
    assert differences(plain, with_part) == {name: (None, value) for name, value in first.items()}
    assert differences(with_part, plain) == {name: (value, None) for name, value in first.items()}
    bare = plain.replace(pretrain=PretrainSpec())
    assert differences(plain, bare) == {"pretrain": (None, {})}


@pytest.mark.parametrize("family", FAMILIES)
def test_what_follows_from_the_data_is_taken_from_the_stored_run(family):
    asked = experiment(family)
    sizes = {"img_size": (16, 16), "in_chans": 3, "num_classes": 2}
    stored = asked.replace(
        model=asked.model.replace(**sizes), data=DataSpec(class_names=("a", "b"))
    )
    assert with_data_defaults(asked, stored, {}) == stored


def test_variants_of_a_study_may_be_of_other_families(here):
    (here / "vit.yaml").write_text("model: {embed_dim: 24}\n")
    (here / "mine.yaml").write_text(
        "base: ./vit.yaml\nseeds: [0]\nvariants:\n  vit: {}\n"
        "  pit: {model.family: pit, model.depths: [1, 1]}\n"
        "  resnet: {experiment: cifar10-resnet18, data.name: shapes, data.val_split: 0}\n"
    )
    models = [variant.spec.model for variant in load_study("mine.yaml").variants]
    assert [model.family for model in models] == ["vit", "pit", "resnet18"]
    assert [type(model) for model in models] == [FAMILIES[m.family].spec for m in models]
