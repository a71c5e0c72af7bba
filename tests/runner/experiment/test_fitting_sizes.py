"""Sizes of images that the patches of a model divide."""

import re
from dataclasses import replace

import pytest
import yaml

from vitcli.runner.data.load import describe_data
from vitcli.runner.errors import ConfigError
from vitcli.runner.experiment.config import fit_to_data, load_experiment


@pytest.mark.parametrize(
    ("fields", "facts", "hint"),
    [
        ({}, {"img_size": (30, 40)}, "-s data.resize=[28,40] or -s data.resize=[32,40]"),
        ({"model.patch_size": 48}, {"img_size": (1020, 1020)}, "-s data.resize=1008"),
        ({"model.patch_size": 8}, {"img_size": (3, 30)}, "-s data.resize=[8,24] or -s data.resiz"),
        ({"model.img_size": [40, 48]}, {}, "-s data.resize=[40,48]"),
        ({}, {"in_chans": 10**9}, "model.in_chans: "),
    ],
)
def test_sizes_that_fit_the_patches_are_named(fields, facts, hint):
    spec = load_experiment("quickstart", fields).spec
    found = replace(describe_data(spec.data), **facts)
    with pytest.raises(ConfigError) as caught:
        fit_to_data(spec, found)
    assert hint in str(caught.value)
    assert ("data.resize" in str(caught.value)) == ("in_chans" not in facts)
    for setting in re.findall(r"data.resize=(\S+)", str(caught.value)):
        changes = {"data.resize": yaml.safe_load(setting)}
        size = load_experiment("quickstart", changes).spec.data.resize
        fit_to_data(spec, replace(found, img_size=size))
