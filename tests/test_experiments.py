"""Every file in experiments/ has a question and a header, parses and builds."""

import re
from pathlib import Path

import pytest
import torch

from vitcli.core.generated.data_sets import GENERATED_SETS
from vitcli.core.inspect.cost import count_parameters
from vitcli.core.models.image_model import build_model
from vitcli.core.spec import DATA_SETS, GENERATED, ExperimentSpec
from vitcli.runner.data.catalogue import CATALOGUE
from vitcli.runner.data.load import describe_data
from vitcli.runner.experiment.config import config_text, load_experiment
from vitcli.runner.experiment.listing import describe_experiment, kind_of
from vitcli.runner.experiment.sizes import fit_to_data

FOLDER = Path(__file__).parents[1] / "experiments"
FILES = sorted(FOLDER.glob("*.yaml"))
EXPERIMENTS = [path for path in FILES if kind_of(path) == "experiment"]
VERBS = {"experiment": "train", "study": "ablate", "search": "search"}
PARAMETERS = {
    "cifar10-tiny": 140_618,
    "cifar10-small": 6_347_082,
    "cifar10-base-p2": 22_080_010,
    "cifar10-resnet18": 11_173_962,
    "cifar10-convnet": 1_971_352,
    "cifar10-vit": 6_030_442,
    "cifar10-cct": 5_963_019,
    "cifar10-swin": 5_931_712,
    "cifar10-coatnet": 6_266_186,
    "cifar10-pit": 6_125_962,
}


def resolved(path: Path) -> ExperimentSpec:
    spec = load_experiment(str(path)).spec
    return fit_to_data(spec, describe_data(spec.data))


TUNED = r"^# Tuned:    (on (no|validation|test) images|not recorded on which images)\b"
"""The line that says which images the settings of a file were chosen on."""


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_has_a_question_a_command_a_cost_a_result_and_what_it_was_tuned_on(path):
    text = path.read_text()
    assert re.findall(r"^# (\w+): ", text, re.M)[:4] == ["Run", "Cost", "Result", "Tuned"]
    assert len(re.findall(TUNED, text, re.M)) == 1
    assert describe_experiment(str(path)).question.endswith("?")
    command = re.findall(r"^# Run: +(.*)$", text, re.M)[0].split()
    assert command[:2] == ["vitcli", VERBS[kind_of(path)]]
    is_default = path.stem in ("quickstart", "ablation-quickstart")
    assert command[2:] == ([] if is_default else [path.stem])


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_an_experiment_resolves_and_builds(path, tmp_path):
    spec = resolved(path)
    with torch.device("meta"):
        model = build_model(spec.model)
    if path.stem in PARAMETERS:
        assert count_parameters(model) == PARAMETERS[path.stem]
    # What a run stores is itself an experiment file.
    (tmp_path / "stored.yaml").write_text(config_text(spec))
    assert load_experiment(str(tmp_path / "stored.yaml")).spec == spec


def test_data_sets_with_a_name_are_in_the_catalogue():
    assert set(DATA_SETS) - set(GENERATED) == CATALOGUE.keys()
    assert list(GENERATED) == list(GENERATED_SETS)
