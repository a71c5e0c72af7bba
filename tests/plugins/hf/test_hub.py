"""Data sets of the Hub; ``tests/runner/data/test_formats.py`` reads one, too."""

import pytest

from vitcli.core.spec import DataSpec
from vitcli.runner.data.load import load_data
from vitcli.runner.errors import InputError


def test_a_data_set_of_the_hub_is_not_downloaded_by_a_training(here):
    pytest.importorskip("datasets", reason="needs the package datasets")
    with pytest.raises(InputError, match="vitcli data get hf:nobody/nothing"):
        load_data(DataSpec(name="hf:nobody/nothing"), offline=True)
