"""The declared margin of equivalence: when it was declared, and what changed later."""

import shutil
from datetime import date

import pytest

from tests.runner.study.trials import ROOT, STUDY, fabricate, write_study
from vitcli.runner.errors import ConfigError
from vitcli.runner.study.collect import read_results
from vitcli.runner.study.definition import Study, load_study
from vitcli.runner.study.notes import notes
from vitcli.runner.study.plan import Options, plan_study
from vitcli.runner.study.run import save_results, write_plan
from vitcli.runner.study.saved import SAVED, SavedTrials
from vitcli.runner.study.statistics import compare

TODAY = date.today().isoformat()

pytestmark = pytest.mark.usefixtures("here")


def study_with(margin: str) -> Study:
    return write_study(f"{STUDY}\n{margin and f'equivalence_margin: {margin}'}")


def declare(study: Study) -> None:
    plan = plan_study(study, ROOT, (), saved=SavedTrials(SAVED))
    ROOT.mkdir(parents=True, exist_ok=True)
    write_plan(plan, Options())


def margins(study: Study) -> list[tuple[float | None, int]]:
    doc = read_results(study, ROOT, (), SavedTrials(SAVED))
    assert all(each.date == TODAY for each in doc.margins)
    return [(each.points, each.num_finished) for each in doc.margins]


def test_a_margin_keeps_its_day_and_the_trials_that_were_known():
    study = study_with("1.0")
    declare(study)
    fabricate("full", 0)
    declare(study)
    assert margins(study) == [(1.0, 0)]
    changed = study_with("2.0")
    declare(changed)
    fabricate("full", 1)
    assert margins(changed) == [(1.0, 0), (2.0, 1)]
    doc = read_results(changed, ROOT)
    assert notes(doc, compare(doc))["effect"].count(f"declared on {TODAY}") == 2
    withdrawn = study_with("")
    assert margins(withdrawn) == [(1.0, 0), (2.0, 1), (None, 2)]
    assert read_results(withdrawn, ROOT).margin is None


def test_trials_that_are_not_asked_for_count_as_known():
    study_with("1.0")
    for seed in (0, 1):
        fabricate("no-norm", seed)
    study = load_study("mine.yaml", seeds=[0])
    assert read_results(study, ROOT, ["full"]).margins[-1].num_finished == 2
    write_plan(plan_study(study, ROOT, ("full",)), Options())
    assert margins(study) == [(1.0, 2)]


def test_the_declaration_travels_with_the_saved_trials():
    study = study_with("1.0")
    declare(study)
    fabricate("full", 0)
    save_results(plan_study(study, ROOT, ()), SAVED)
    shutil.rmtree(ROOT)
    declare(study)
    fabricate("full", 1)
    assert margins(study) == [(1.0, 0)]


@pytest.mark.parametrize("margin", ["0", "-1.0", "wide"])
def test_a_margin_is_a_positive_number(margin):
    with pytest.raises(ConfigError, match="equivalence_margin"):
        study_with(margin)
