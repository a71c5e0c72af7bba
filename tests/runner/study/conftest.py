"""Made-up studies."""

import pytest

from tests.fabricated_study import make_hostile_study, make_reference, make_study
from tests.runner.study.tables import ROWS, SOURCE
from vitcli.runner.study.result import StudyResult


@pytest.fixture(scope="module")
def doc() -> StudyResult:
    return make_study(ROWS, reference=make_reference(SOURCE))


@pytest.fixture(scope="module")
def hostile() -> StudyResult:
    return make_hostile_study()
