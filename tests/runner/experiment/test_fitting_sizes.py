"""Sizes of images that the patches of a model divide."""

import re
from dataclasses import replace

import pytest
import yaml

from vitcli.core.spec import DataSpec
from vitcli.runner.data.load import describe_data
from vitcli.runner.errors import ConfigError
from vitcli.runner.experiment.config import fit_to_data, load_experiment


@pytest.mark.parametrize(
    ("fields", "size", "hint"),
    [
        ({}, (30, 30), "-s data.resize=28 or -s data.resize=32"),
        ({}, (30, 40), "-s data.resize=[28,40] or -s data.resize=[32,40]"),
        ({"model.patch_size": 48}, (1020, 1020), "-s data.resize=1008"),
        ({"model.patch_size": 8}, (3, 30), "-s data.resize=[8,24] or -s data.resize=[8,32]"),
    ],
)
def test_sizes_that_fit_the_patches_are_named(fields, size, hint):
    spec = load_experiment("quickstart", {"data.name": "imagefolder:here", **fields}).spec
    facts = replace(describe_data(DataSpec()), name="imagefolder:here", img_size=size)
    with pytest.raises(ConfigError, match=f"{re.escape(hint)}$"):
        fit_to_data(spec, facts)
    for setting in re.findall(r"data.resize=(\S+)", hint):
        fitting = load_experiment("quickstart", {"data.resize": yaml.safe_load(setting)}).spec
        fit_to_data(spec, replace(facts, img_size=fitting.data.resize))


def test_a_clash_of_sizes_names_the_size_of_the_model():
    spec = load_experiment("quickstart", {"model.img_size": [40, 48]}).spec
    with pytest.raises(ConfigError, match=r"-s data.resize=\[40,48\]$"):
        fit_to_data(spec, describe_data(spec.data))


def test_no_size_is_suggested_for_what_has_nothing_to_do_with_it():
    spec = load_experiment("quickstart", {}).spec
    with pytest.raises(ConfigError, match=r"model.in_chans: .*\(from data set scenes\)$"):
        fit_to_data(spec, replace(describe_data(spec.data), in_chans=10**9))
