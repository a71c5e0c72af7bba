"""Answers to a reproducibility checklist, from the study or left to the author."""

from tests.fabricated_study import make_hostile_study, make_study
from vitcli.runner.study.checklist import ITEMS, TO_DO, checklist


def section(text: str, number: int) -> str:
    return text.partition(f"## {number}. ")[2].partition("\n## ")[0]


def test_the_answers_come_from_the_study_or_are_left_to_the_author():
    text = checklist(make_study({"full": [0.9, 0.8], "less": [0.7, "missing"]}))
    for number, fact in ((4, "vitcli ablate made-up"), (4, "Seeds: 0, 1;"), (8, "AMD EPYC")):
        assert fact in section(text, number)
    assert "1 of 4 trials" in section(text, 4)
    assert "10,000 training and 2,000 test images" in section(text, 6)
    unknown = checklist(make_study({"full": [0.9]}, data="imagefolder:mine"))
    for number in (5, 6, 8, 12):
        assert TO_DO in section(unknown, number)


def test_hostile_names_add_no_headings_and_no_markup():
    text = checklist(make_hostile_study())
    headings = [line for line in text.splitlines() if line.startswith("#")]
    assert len(headings) == 1 + len(ITEMS)
    assert "<script" not in text.replace("\\<", "")
    assert "\x1b" not in text
