"""Hashes name run folders and results, so they must stay what earlier versions computed.

``hashes.json`` was computed when one spec held the fields of all families: for every shipped
experiment, every variant of every shipped study, each family in several settings, and for complete
configurations as they were stored then. Entries of a study whose settings have changed since are
those of its new settings, recorded after the old settings had given the old hashes.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from vitcli.core.spec import FAMILIES, ExperimentSpec
from vitcli.runner.experiment.config import config_hash, config_text, load_experiment, model_hash
from vitcli.runner.experiment.yaml_text import Document
from vitcli.runner.study.definition import load_study

FOLDER = Path(__file__).parents[3] / "experiments"
RECORDED = json.loads(Path(__file__).with_name("hashes.json").read_text())
KINDS = ("config_1", "config_2", "model")


def hashes(spec: ExperimentSpec) -> dict[str, str]:
    values = config_hash(spec, 1), config_hash(spec, 2), model_hash(spec.model)
    return dict(zip(KINDS, values, strict=True))


def recorded(entry: dict[str, Any]) -> dict[str, str]:
    return {kind: entry[kind] for kind in KINDS}


@pytest.mark.parametrize("name", RECORDED["experiments"])
def test_an_experiment_keeps_its_hashes(name):
    spec = load_experiment(str(FOLDER / f"{name}.yaml")).spec
    assert hashes(spec) == recorded(RECORDED["experiments"][name])


@pytest.mark.parametrize("study", sorted({key.split("/")[0] for key in RECORDED["variants"]}))
def test_the_variants_of_a_study_keep_their_hashes(study):
    found = {
        f"{study}/{variant.name}/{index}": hashes(spec)
        for variant in load_study(str(FOLDER / f"{study}.yaml")).variants
        for index, (_, spec) in enumerate(variant.settings)
    }
    wanted = {k: recorded(v) for k, v in RECORDED["variants"].items() if k.startswith(f"{study}/")}
    assert found == wanted


@pytest.mark.parametrize("entry", RECORDED["settings"], ids=lambda entry: str(entry["config"]))
def test_a_setting_of_a_family_keeps_its_hashes(entry):
    assert hashes(ExperimentSpec.model_validate(entry["config"])) == recorded(entry)


@pytest.mark.parametrize("entry", RECORDED["stored"], ids=lambda e: e["config"]["model"]["family"])
def test_a_complete_old_configuration_keeps_its_hashes_and_loses_foreign_fields(entry):
    model = entry["config"]["model"]
    assert len(model) == 46
    spec = ExperimentSpec.model_validate(entry["config"])
    assert hashes(spec) == recorded(entry)
    written = Document(config_text(spec), "config.yaml").data
    assert written["model"].keys() == FAMILIES[model["family"]].spec.model_fields.keys()
    assert written["task"] == {"name": "classify", "headline": "accuracy"}
    assert hashes(ExperimentSpec.model_validate(written)) == recorded(entry)


def test_every_family_is_recorded():
    families = {entry["config"]["model"]["family"] for entry in RECORDED["stored"]}
    assert families == FAMILIES.keys() - {"timm", "convnet"}, "0.7.0 had neither"


def test_of_a_teacher_with_a_known_hash_nothing_else_is_in_the_hash():
    spec = load_experiment("distil-quickstart").spec
    hashed = [
        config_hash(
            spec.replace(task=spec.task.replace(teacher=spec.task.teacher.replace(**known)))
        )
        for known in (
            {"run": "here", "sha256": "a" * 64},
            {"run": "there", "sha256": "a" * 64},
            {"run": "here", "sha256": "b" * 64},
        )
    ]
    assert hashed[0] == hashed[1] != hashed[2]
