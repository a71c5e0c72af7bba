"""A small study."""

import pytest

from tests.runner.study.trials import write_study
from vitcli.runner.study.definition import Study


@pytest.fixture
def study(here) -> Study:
    """Return a study of two variants and two seeds, without trials."""
    return write_study()
