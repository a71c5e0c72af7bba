"""Answers to a conference's reproducibility checklist, from the document of a study.

The questions are items 4 to 8 and 12 of the NeurIPS paper checklist, in our words. The answers are
the notes of the study's table and a few more. The author must answer what the runs do not know; the
text marks these places.
"""

from collections.abc import Callable

from vitcli.core.spec import GENERATED
from vitcli.runner.run.folder import RESULT_STATES
from vitcli.runner.study.notes import UNCERTAINTY, notes
from vitcli.runner.study.result import StudyResult
from vitcli.runner.study.statistics import compare
from vitcli.runner.tables import escape_markdown
from vitcli.runner.text import quantity, setting_text

SOURCE = "https://neurips.cc/public/guides/PaperChecklist"
TO_DO = "To be filled in by the author:"


def checklist(doc: StudyResult) -> str:
    """Return the checklist as Markdown: a heading for each item, then its answers."""
    known = notes(doc, compare(doc))
    lines = [f"# Reproducibility of {escape_markdown(doc.name)}", ""]
    lines += [f"Items of the NeurIPS paper checklist, <{SOURCE}>."]
    for number, question, subjects, further in ITEMS:
        lines += ["", f"## {number}. {question}", ""]
        answers = [text for subject, text in known.items() if subject in subjects]
        lines += [f"- {escape_markdown(answer)}" for answer in (*answers, *further(doc))]
    return "\n".join(lines)


def _seeds(doc: StudyResult) -> list[str]:
    """Return the seeds, what else a repetition needs, and the number of missing results."""
    trials = [trial for row in doc.rows for trial in row.trials]
    seeds = ", ".join(map(str, sorted({trial.seed for trial in trials})))
    answers = [
        f"Seeds: {seeds}; a seed sets initial weights, data order and augmentation.",
        "Bit-identical results need the same torch, hardware and number of threads.",
    ]
    if num_open := sum(trial.state not in RESULT_STATES for trial in trials):
        have = "has" if num_open == 1 else "have"
        answers.append(f"{num_open} of {quantity(len(trials), 'trial')} {have} no result yet.")
    return answers


def _settings(doc: StudyResult) -> list[str]:
    """Return the splits, the fields, and how they were chosen."""
    images = ""
    if doc.num_train and doc.num_test:
        images = f"{doc.num_train:,} training and {quantity(doc.num_test, 'test image')}; "
    held_out = doc.base_config.get("data.val_split")
    kept = f"held out: {_held_out(held_out)}" if held_out else ""
    base = "; ".join(f"{field} = {value}" for field, value in doc.base_config.items())
    variants = "; ".join(
        f"{row.variant}: {', '.join(f'{k} = {v}' for k, v in row.changes.items())}"
        for row in doc.rows[1:]
    )
    tuned = next((row.candidates for row in doc.rows if row.candidates), ())
    tried = ", ".join(setting_text(candidate.setting) for candidate in tuned)
    return [
        f"{images}{kept or 'no validation split'}.",
        f"Baseline: fields that differ from the defaults: {base or 'none'}.",
        f"Variants: {variants or 'none'}.",
        f"Settings that were tried: {tried}."
        if tuned
        else f"{TO_DO} how the hyper-parameters were chosen (this study tuned none).",
        "The config.yaml in each trial's folder holds the complete configuration.",
    ]


def _held_out(val_split: float) -> str:
    """Return ``data.val_split`` in words: a number of images, or a share below 1."""
    if val_split < 1:
        return f"{100 * val_split:g} % of the training images"
    return quantity(int(val_split), "training image")


def _assets(doc: StudyResult) -> list[str]:
    data = f"{TO_DO} citation and licence of the data set {doc.data}."
    if doc.data in GENERATED:
        data = f"Data: vitcli draws the images of {doc.data} itself, so they need no licence."
    return ["Software: vitcli (MIT), PyTorch (BSD-3-Clause).", data]


def _always(*answers: str) -> Callable[[StudyResult], list[str]]:
    return lambda doc: [*answers]


NORMAL = "The interval assumes that the paired differences are normally distributed."
ELSEWHERE = f"{TO_DO} the compute of experiments outside this table."
ITEMS: tuple[tuple[int, str, tuple[str, ...], Callable[[StudyResult], list[str]]], ...] = (
    (4, "Can the main results be reproduced?", ("command", "environment"), _seeds),
    (5, "Are data and code open?", ("training",), _always(f"{TO_DO} where the code is available.")),
    (6, "Are all settings given?", ("training", "tuning"), _settings),
    (7, "Is the uncertainty of the results given?", UNCERTAINTY, _always(NORMAL)),
    (8, "Is the compute given?", ("environment", "compute"), _always(ELSEWHERE)),
    (12, "Are the assets that were used credited, with their licences?", ("source",), _assets),
)
"""Number, question, subjects of the notes that answer it, and further answers."""
