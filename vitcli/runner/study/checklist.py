"""Answers to a conference's reproducibility checklist, from the document of a study.

The questions are items 4 to 8 and 12 of the NeurIPS paper checklist, in our words. The author must
answer what the runs do not know; the text marks these places.
"""

from collections.abc import Callable

from vitcli.core.spec import GENERATED
from vitcli.runner.run.folder import RESULT_STATES
from vitcli.runner.study.notes import UNCERTAINTY, notes
from vitcli.runner.study.result import StudyResult
from vitcli.runner.study.statistics import compare
from vitcli.runner.tables import escape_markdown
from vitcli.runner.text import quantity, rough_duration, setting_text

SOURCE = "https://neurips.cc/public/guides/PaperChecklist"
TO_DO = "To be filled in by the author:"


def checklist(doc: StudyResult) -> str:
    """Return the checklist as Markdown: a heading for each item, then its answers."""
    lines = [f"# Reproducibility of {escape_markdown(doc.name)}", ""]
    lines += [f"Items of the NeurIPS paper checklist, <{SOURCE}>."]
    for number, question, answers in ITEMS:
        lines += ["", f"## {number}. {question}", ""]
        lines += [f"- {escape_markdown(answer)}" for answer in answers(doc)]
    return "\n".join(lines)


def reproducibility(doc: StudyResult) -> list[str]:
    """Return the command, the code version, the seeds and the number of missing results."""
    seeds = sorted({trial.seed for row in doc.rows for trial in row.trials})
    code = ", ".join(commit[:12] for commit in doc.commits) or "unknown"
    states = [trial.state for row in doc.rows for trial in row.trials]
    num_open = sum(state not in RESULT_STATES for state in states)
    answers = [
        f"One command trains every model and prints the table: {doc.command}.",
        f"Code: vitcli at commit {code}{' with uncommitted changes' if doc.dirty else ''}.",
        f"Seeds: {', '.join(map(str, seeds))}; a seed sets initial weights, data order and"
        " augmentation.",
        f"Bit-identical results need the same torch ({', '.join(doc.torch) or 'unknown'}), hardware"
        f" and number of threads ({doc.threads}).",
    ]
    if num_open:
        have = "has" if num_open == 1 else "have"
        answers.append(f"{num_open} of {quantity(len(states), 'trial')} {have} no result yet.")
    return answers


def access(doc: StudyResult) -> list[str]:
    """Return the data set and its hash; the author adds the address of the code."""
    data_hash = f" (SHA-256 of the images and labels: {doc.data_hash})" if doc.data_hash else ""
    return [f"Data: {doc.data}{data_hash}.", f"{TO_DO} where the code is available."]


def settings(doc: StudyResult) -> list[str]:
    """Return the splits, the hyper-parameters and how they were chosen."""
    images = ""
    if doc.num_train and doc.num_test:
        images = f"{doc.num_train:,} training and {quantity(doc.num_test, 'test image')}; "
    held_out = doc.base_config.get("data.val_split")
    kept = f"held out: {quantity(held_out, 'training image')}" if held_out else ""
    base = "; ".join(f"{field} = {value}" for field, value in doc.base_config.items())
    variants = "; ".join(
        f"{row.variant}: {', '.join(f'{k} = {v}' for k, v in row.changes.items())}"
        for row in doc.rows[1:]
    )
    return [
        f"{images}{kept or 'no validation split'}.",
        f"Baseline: {quantity(doc.epochs, 'epoch')}."
        f" Fields that differ from the defaults: {base or 'none'}.",
        f"Variants: {variants or 'none'}.",
        _describe_tuning(doc),
        "The config.yaml in each trial's folder holds the complete configuration.",
    ]


def _describe_tuning(doc: StudyResult) -> str:
    tuned = [row for row in doc.rows if row.candidates]
    if not tuned:
        return f"{TO_DO} how the hyper-parameters were chosen (this study tuned none)."
    tried = ", ".join(setting_text(candidate.setting) for candidate in tuned[0].candidates)
    return (
        f"Each variant was tuned alone, by mean {doc.headline.label} on the validation split:"
        f" {tried}. The test images played no part in the choice."
    )


def uncertainty(doc: StudyResult) -> list[str]:
    """Return the table's notes on what varies, the spread, the intervals and the tests."""
    texts = [text for subject, text in notes(doc, compare(doc)).items() if subject in UNCERTAINTY]
    return [*texts, "The interval assumes that the paired differences are normally distributed."]


def compute(doc: StudyResult) -> list[str]:
    """Return the hardware, the training time of each variant and the total."""
    rows = compare(doc)
    total = sum(row.seconds_total or 0 for row in rows)
    count = sum(row.n for row in rows)
    each = "; ".join(
        f"{row.variant}: {rough_duration(row.seconds_mean)}" for row in rows if row.seconds_mean
    )
    threads = quantity(doc.threads, "CPU thread")
    return [
        f"Hardware: {', '.join(doc.hardware) or 'unknown'}; {threads} per trial;"
        f" {', '.join(doc.precision) or 'unknown precision'}.",
        f"Mean training time of a trial: {each or 'none finished'}.",
        f"Total: {rough_duration(total) or '0 s'} for {quantity(count, 'finished trial')}."
        " Trials may have run at the same time.",
        *(
            ["These times do not include the settings that were tried but not chosen."]
            if any(row.candidates for row in doc.rows)
            else []
        ),
        f"{TO_DO} the compute of experiments outside this table.",
    ]


def assets(doc: StudyResult) -> list[str]:
    """Return the software, the reference and the data set, with their licences."""
    reference = f" Compared with: {doc.reference.source}." if doc.reference else ""
    data = f"{TO_DO} citation and licence of the data set {doc.data}."
    if doc.data in GENERATED:
        data = f"Data: vitcli draws the images of {doc.data} itself, so they need no licence."
    return [f"Software: vitcli (MIT), PyTorch (BSD-3-Clause).{reference}", data]


ITEMS: tuple[tuple[int, str, Callable[[StudyResult], list[str]]], ...] = (
    (4, "Can the main results be reproduced?", reproducibility),
    (5, "Are data and code open?", access),
    (6, "Are all settings given?", settings),
    (7, "Is the uncertainty of the results given?", uncertainty),
    (8, "Is the compute given?", compute),
    (12, "Are the assets that were used credited, with their licences?", assets),
)
