"""The declared margin of equivalence: when it was declared, and what changed later."""

import json
import shutil
from datetime import date

import pytest

from tests.runner.study.test_states import ROOT, STUDY, fabricate
from vitcli.runner.engines.plan_file import PLAN
from vitcli.runner.errors import ConfigError
from vitcli.runner.study.collect import read_results
from vitcli.runner.study.definition import Study, load_study
from vitcli.runner.study.notes import notes
from vitcli.runner.study.plan import Options, plan_study
from vitcli.runner.study.run import save_results, write_plan
from vitcli.runner.study.saved import SAVED, SavedTrials
from vitcli.runner.study.statistics import compare

TODAY = date.today().isoformat()


def study_with(here, margin: str) -> Study:
    (here / "mine.yaml").write_text(f"{STUDY}\n{margin}")
    return load_study("mine.yaml")


def declare(study: Study) -> None:
    plan = plan_study(study, ROOT, (), saved=SavedTrials(SAVED))
    ROOT.mkdir(parents=True, exist_ok=True)
    write_plan(plan, Options())


def margins(study: Study) -> list[tuple[float | None, int]]:
    doc = read_results(study, ROOT, (), SavedTrials(SAVED))
    assert all(each.date == TODAY for each in doc.margins)
    return [(each.points, each.num_finished) for each in doc.margins]


def test_a_margin_keeps_its_day_and_the_trials_that_were_known(here):
    study = study_with(here, "equivalence_margin: 1.0")
    declare(study)
    fabricate("full", 0)
    declare(study)
    assert margins(study) == [(1.0, 0)]
    changed = study_with(here, "equivalence_margin: 2.0")
    assert margins(changed) == [(1.0, 0), (2.0, 1)]
    declare(changed)
    fabricate("full", 1)
    assert margins(changed) == [(1.0, 0), (2.0, 1)]
    withdrawn = study_with(here, "")
    assert margins(withdrawn) == [(1.0, 0), (2.0, 1), (None, 2)]
    doc = read_results(withdrawn, ROOT)
    assert doc.margin is None


def test_trials_that_are_not_asked_for_count_as_known(here):
    study_with(here, "equivalence_margin: 1.0")
    for seed in (0, 1):
        fabricate("no-norm", seed)
    study = load_study("mine.yaml", seeds=[0])
    ROOT.mkdir(parents=True, exist_ok=True)
    assert read_results(study, ROOT, ["full"]).margins[-1].num_finished == 2
    write_plan(plan_study(study, ROOT, ("full",)), Options())
    assert margins(study) == [(1.0, 2)]


def test_a_change_is_printed_below_the_table(here):
    study = study_with(here, "equivalence_margin: 1.0")
    declare(study)
    fabricate("full", 0)
    changed = study_with(here, "equivalence_margin: 2.5")
    doc = read_results(changed, ROOT)
    text = notes(doc, compare(doc))["effect"]
    assert f"1 percentage point declared on {TODAY}, when 0 trials had a result" in text
    assert f"then 2.5 percentage points declared on {TODAY}, when 1 trial had a result" in text


def test_a_study_without_a_margin_says_nothing_of_it(here):
    study = study_with(here, "")
    declare(study)
    assert json.loads((ROOT / PLAN).read_text())["margins"] == []
    assert margins(study) == []


def test_the_declaration_travels_with_the_saved_trials(here):
    study = study_with(here, "equivalence_margin: 1.0")
    declare(study)
    fabricate("full", 0)
    save_results(plan_study(study, ROOT, ()), SAVED)
    shutil.rmtree(ROOT)
    assert margins(study) == [(1.0, 0)]
    declare(study)
    fabricate("full", 1)
    assert margins(study) == [(1.0, 0)]


@pytest.mark.parametrize("margin", ["0", "-1.0", "wide"])
def test_a_margin_is_a_positive_number(here, margin):
    with pytest.raises(ConfigError, match="equivalence_margin"):
        study_with(here, f"equivalence_margin: {margin}")
