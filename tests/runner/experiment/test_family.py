"""``-s model.family=NAME`` takes the small model of the family over any experiment."""

import pytest
import torch

from vitcli.core.inspect.cost import count_parameters
from vitcli.core.spec import FAMILIES, ExperimentSpec
from vitcli.runner.data.load import describe_data
from vitcli.runner.errors import ConfigError
from vitcli.runner.experiment.build import new_module
from vitcli.runner.experiment.config import Experiment, fit_to_data, load_experiment

LARGEST = {"resnet18": 11_173_962}
"""Parameters of families of one size; all others are small."""


def fitted(experiment: Experiment) -> ExperimentSpec:
    return fit_to_data(experiment.spec, describe_data(experiment.spec.data))


@pytest.mark.parametrize("base", ["cifar10-vit", "cifar10-swin"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_can_be_typed_over_any_experiment(family, base):
    before = load_experiment(base)
    after = load_experiment(base, {"model.family": family})
    if family == before.spec.model.family:
        assert (after.spec, after.note) == (before.spec, "")
        return
    assert after.changed
    assert after.note.startswith(f"model.family={family} replaces the experiment's model by a ")
    assert after.spec.replace(model=before.spec.model) == before.spec, "the rest stays"
    spec = fitted(after)
    module = new_module(spec)
    assert count_parameters(module) <= LARGEST.get(family, 400_000)
    assert module(torch.randn(2, 3, *(spec.model.img_size or ()))).shape == (2, 10)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_small_model_takes_other_images(family):
    size = 28
    sizes = {"img_size": [size, size], "in_chans": 1, "num_classes": 3}
    changes = {f"model.{name}": value for name, value in sizes.items()}
    other = "cifar10-resnet18" if family == "vit" else "cifar10-tiny"
    spec = load_experiment(other, {"model.family": family, **changes}).spec
    assert spec.model.family == family
    module = new_module(spec)
    assert module(torch.randn(2, 1, size, size)).shape == (2, 3)


def test_other_changes_apply_to_the_new_model_and_the_sizes_stay(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("model: {num_classes: 7, embed_dim: 96, depth: 2}\n")
    spec = load_experiment(str(path), {"model.depths": [1, 1], "model.family": "pit"}).spec
    assert (spec.model.family, spec.model.depths, spec.model.num_classes) == ("pit", (1, 1), 7)
    assert spec.model.embed_dim == FAMILIES["pit"].small["embed_dim"] != 96


def test_a_recipe_that_the_new_family_does_not_support_is_refused():
    with pytest.raises(ConfigError, match=r"^--set: optim\.name: muon takes .*; take adamw"):
        load_experiment("quickstart", {"model.family": "resnet18"})
    changes = {"model.family": "resnet18", "optim.name": "adamw"}
    assert load_experiment("quickstart", changes).spec.model.family == "resnet18"


@pytest.mark.parametrize(("value", "shown"), [("resnet19", "'resnet19'"), (["vit"], "a list")])
def test_a_family_that_does_not_exist_is_refused_as_any_other_value(value, shown):
    with pytest.raises(ConfigError, match=rf"^--set: model\.family: should be 'vit', .*{shown}"):
        load_experiment("quickstart", {"model.family": value})
