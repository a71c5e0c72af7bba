"""Hashes stay what earlier versions computed, as they name results; and differences.

``hashes.json`` was computed when one spec held the fields of all families: for every shipped
experiment, every variant of every shipped study, each family in several settings, and for complete
configurations as they were stored then. Entries of a study whose settings have changed since are
those of its new settings, recorded after the old settings had given the old hashes.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.core.specs import REQUIRED
from tests.plugin_rows import of_file
from vitcli.core.spec import FAMILIES, ExperimentSpec, PretrainSpec, model_spec
from vitcli.runner.experiment.config import (
    config_hash,
    config_text,
    load_experiment,
    model_hash,
    parse_experiment,
)
from vitcli.runner.experiment.diff import changed_fields, differences
from vitcli.runner.experiment.yaml_text import Document
from vitcli.runner.study.definition import load_study

pytestmark = pytest.mark.seam

FOLDER = Path(__file__).parents[3] / "experiments"
RECORDED = json.loads(Path(__file__).with_name("hashes.json").read_text())


def hashes(spec: ExperimentSpec) -> dict[str, Any]:
    hashes = {"config_1": config_hash(spec, 1), "config_2": config_hash(spec, 2)}
    return hashes | {"model": model_hash(spec.model)}


@pytest.mark.parametrize(
    "name", [of_file(FOLDER / f"{name}.yaml", name) for name in RECORDED["experiments"]]
)
def test_an_experiment_keeps_its_hashes(name):
    spec = load_experiment(str(FOLDER / f"{name}.yaml")).spec
    assert hashes(spec) == RECORDED["experiments"][name]


STUDIES = sorted({key.split("/")[0] for key in RECORDED["variants"]})


@pytest.mark.parametrize("study", [of_file(FOLDER / f"{study}.yaml", study) for study in STUDIES])
def test_the_variants_of_a_study_keep_their_hashes(study):
    found = {
        f"{study}/{variant.name}/{index}": hashes(spec)
        for variant in load_study(str(FOLDER / f"{study}.yaml")).variants
        for index, (_, spec) in enumerate(variant.settings)
    }
    wanted = {k: v for k, v in RECORDED["variants"].items() if k.startswith(f"{study}/")}
    assert found == wanted


@pytest.mark.parametrize("entry", RECORDED["settings"], ids=lambda entry: str(entry["config"]))
def test_a_setting_of_a_family_keeps_its_hashes(entry):
    spec = ExperimentSpec.model_validate(entry["config"])
    assert hashes(spec) | {"config": entry["config"]} == entry


@pytest.mark.parametrize("entry", RECORDED["stored"], ids=lambda e: e["config"]["model"]["family"])
def test_a_complete_old_configuration_keeps_its_hashes_and_loses_foreign_fields(entry):
    model = entry["config"]["model"]
    assert len(model) == 46
    spec = ExperimentSpec.model_validate(entry["config"])
    assert hashes(spec) | {"config": entry["config"]} == entry
    written = Document(config_text(spec), "config.yaml").data
    assert written["model"].keys() == FAMILIES[model["family"]].spec.model_fields.keys()
    assert written["task"] == {"name": "classify", "headline": "accuracy"}
    assert hashes(ExperimentSpec.model_validate(written)) == hashes(spec)


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
def test_a_plain_configuration_differs_as_its_spec_does(family):
    vit, other = experiment(), experiment(family)
    plain = other.model_dump(mode="json")
    assert differences(other, plain) == {}
    assert differences(vit, plain).keys() == differences(vit, other).keys()


@pytest.mark.parametrize("family", FAMILIES)
def test_the_changed_fields_make_the_experiment_again(family):
    spec = experiment(family)
    plain = {k: list(v) if isinstance(v, tuple) else v for k, v in changed_fields(spec).items()}
    assert plain.get("model.family", "vit") == family
    model = {name.partition(".")[2]: value for name, value in plain.items()}
    assert parse_experiment({"model": model}, Document("", "x")) == spec


def test_a_part_that_only_one_has_differs_in_its_own_fields():
    first = {"pretrain.train.batch_size": 8, "pretrain.train.epochs": 2}
    plain = load_experiment("quickstart").spec
    with_part = load_experiment("quickstart", first).spec
    assert differences(plain, with_part) == {name: (None, value) for name, value in first.items()}
    assert differences(with_part, plain) == {name: (value, None) for name, value in first.items()}
    bare = plain.replace(pretrain=PretrainSpec())
    assert differences(plain, bare) == {"pretrain": (None, {})}
