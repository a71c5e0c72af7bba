"""Values are written so that ``--set`` reads them back."""

import pytest

from vitcli.runner.experiment.config import parse_set
from vitcli.runner.experiment.yaml_text import format_value


@pytest.mark.parametrize(
    "value", [3, 1e-5, 0.1, 1e16, None, True, "cls", "true", "3", "1e3", "a b", "", (1, 2), "a: b"]
)
def test_set_reads_back_what_was_written(value):
    back = parse_set(f"field={format_value(value)}")["field"]
    assert back == (list(value) if isinstance(value, tuple) else value)
    assert type(back) is (list if isinstance(value, tuple) else type(value))
