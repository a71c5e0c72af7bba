"""Answers to a reproducibility checklist, from the study or left to the author."""

from tests.fabricated_study import make_hostile_study, make_row, make_study
from vitcli.runner.study import checklist as checklists
from vitcli.runner.study.checklist import ITEMS, TO_DO, checklist
from vitcli.runner.study.notes import UNCERTAINTY
from vitcli.runner.study.result import Candidate


def section(text: str, number: int) -> str:
    return text.partition(f"## {number}. ")[2].partition("\n## ")[0]


def test_the_answers_come_from_the_study():
    doc = make_study({"full": [0.9, 0.8], "less": [0.7, "missing"]})
    text = checklist(doc)
    assert "vitcli ablate made-up" in section(text, 4)
    assert "Seeds: 0, 1;" in section(text, 4)
    assert "1 of 4 trials has no result yet" in section(text, 4)
    assert "10,000 training and 2,000 test images; no validation split" in section(text, 6)
    assert "standard deviation over seeds" in section(text, 7)
    assert "an interval needs 3 pairs" in section(text, 7)
    assert "AMD EPYC" in section(text, 8)
    assert "Compute: 3 trainings" in section(text, 8)
    assert "no result yet" not in checklist(make_study({"full": [0.9]}))


def test_unknown_facts_are_left_to_the_author():
    text = checklist(make_study({"full": [0.9]}, data="imagefolder:mine"))
    for number in (5, 6, 8, 12):
        assert TO_DO in section(text, number)


def test_a_tuned_study_says_how_settings_were_chosen():
    settings = tuple(Candidate(setting={"optim.lr": lr}, val_accuracy=0.8) for lr in (0.1, 0.2))
    row = make_row("full", [0.9]).replace(candidates=settings, chosen={"optim.lr": 0.1})
    text = checklist(make_study({}, rows=(row,), base_config={"data.val_split": 5000}))
    assert "held out: 5,000 training images" in section(text, 6)
    assert "lr=0.1, lr=0.2" in section(text, 6)
    assert TO_DO not in section(text, 6)


def test_hostile_names_add_no_headings_and_no_markup():
    text = checklist(make_hostile_study())
    headings = [line for line in text.splitlines() if line.startswith("#")]
    assert len(headings) == 1 + len(ITEMS)
    assert "<script" not in text.replace("\\<", "")
    assert "\x1b" not in text


def test_the_uncertainty_answer_selects_notes_by_subject(monkeypatch):
    texts = dict.fromkeys(UNCERTAINTY, "words that were changed") | {"training": "not about this"}
    monkeypatch.setattr(checklists, "notes", lambda doc, rows: texts)
    answers = section(checklist(make_study({"full": [0.9, 0.8]})), 7)
    assert answers.count("words that were changed") == len(UNCERTAINTY)
    assert "not about this" not in answers
