"""Made-up studies."""

import pytest

from tests.fabricated_study import make_hostile_study, make_reference, make_study
from tests.runner.study.tables import ROWS, SOURCE
from tests.runner.study.trials import write_study
from vitcli.runner.study.definition import Study
from vitcli.runner.study.result import StudyResult


@pytest.fixture
def study(here) -> Study:
    """Return a study of two variants and two seeds, without trials."""
    return write_study()


@pytest.fixture(scope="module")
def doc() -> StudyResult:
    return make_study(ROWS, reference=make_reference(SOURCE))


@pytest.fixture(scope="module")
def hostile() -> StudyResult:
    return make_hostile_study()
