"""The tables, the sentences and the figure of docs/pretraining.md.

Three studies have their own number of labels each. The first variant of each is training from
scratch. The files in experiments/results/tasks hold the gates of the tasks.
"""

import json
import statistics
from functools import partial
from pathlib import Path
from typing import Any

from sentences import POOLED, study_sentences

from vitcli.runner.text import quantity

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "experiments" / "results"
STUDIES = {
    "study-pretraining-100": "100",
    "study-pretraining": "1,000",
    "study-pretraining-all": "50,000",
}
FIGURE = "study-pretraining.png"
IMAGE = (
    "![test accuracy against the number of labels, and its difference from training from scratch"
    f" with 95 % intervals](../experiments/results/{FIGURE})"
)
"""The line that shows the figure, on a page of docs/."""

GATES = {
    "mae": ("masked_mse", "nearest_mse", "probe_before", "probe_after"),
    "dino": ("knn_before", "knn_after", "loss"),
    "lejepa": ("knn_before", "knn_after", "loss"),
    "clip": (
        *("zero_shot_accuracy", "trained_prompts_accuracy"),
        *("l1_seen_pair_accuracy", "l1_unseen_pair_accuracy"),
        *("l1_unseen_class_accuracy", "l1_unseen_transformation_accuracy"),
        *("superclass_accuracy", "l2_superclass_accuracy"),
        *("l2_accuracy_among_unseen", "l2_accuracy_among_all"),
    ),
    "fusion": ("accuracy", "image_accuracy", "sound_accuracy", "retrieval"),
}
"""Name of a result file -> the numbers of a training that the table shows."""


def gates() -> str:
    """Return the means of the numbers of each case over the seeds."""
    paths = {name: RESULTS / "tasks" / f"{name}.json" for name in GATES}
    found = {name: json.loads(path.read_text()) for name, path in paths.items() if path.exists()}
    if not found:
        return ""
    rows = ["| gate | case | seeds | mean of the numbers |", "|---|---|---|---|"]
    for name, document in found.items():
        for case, trials in trials_of(document).items():
            rows.append(f"| `{name}` | {case} | {len(trials)} | {means(name, trials)} |")
    made = [made_by(each) for each in found.values()]
    return "\n".join([*rows, "", f"Measured by {', '.join(made)}."])


def made_by(document: dict[str, Any]) -> str:
    """Return command, hardware, date and commit of a gate's result file."""
    one = document if "date" in document else next(iter(document["settings"].values()))
    where = one["environment"]
    made = f"{where['hardware']}; {one['date']}, commit {where['commit'][:9]}"
    return f"`{document['command']}` ({made})"


def trials_of(document: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return case -> its trainings, from a gate's result file."""
    if "results" in document:
        return dict(document["results"])
    return {name: setting["rows"] for name, setting in document["settings"].items()}


def means(name: str, trials: list[dict[str, Any]]) -> str:
    """Return the means of the numbers of a gate, such as ``loss 4.852``."""
    texts = [
        f"{number.replace('_', ' ')} {statistics.mean(trial[number] for trial in trials):.3f}"
        for number in GATES[name]
        if number in trials[0]
    ]
    return ", ".join(texts)


def studies() -> dict[str, Any]:
    """Return number of labels -> the result of its study, of those that have one."""
    from vitcli.runner.study.table import read_document

    paths = {labels: RESULTS / f"{name}.json" for name, labels in STUDIES.items()}
    return {
        labels: read_document(path.read_text()) for labels, path in paths.items() if path.exists()
    }


def cell(row: Any) -> str:
    """Return accuracy and difference, such as ``48.1 +- 0.3 % (+5.1: 4.2 to 6.0)``."""
    if row.score_mean is None:
        return "not finished"
    text = f"{row.score_mean:.2f}"
    if row.score_sd is not None:
        text += f" +- {row.score_sd:.2f}"
    text += " %"
    if row.ci_low is not None:
        text += f" ({row.difference:+.2f}: {row.ci_low:+.2f} to {row.ci_high:+.2f})"
    return text


def pretraining() -> str:
    """Return test accuracy by variant and number of labels, and what it shows."""
    from vitcli.runner.study.statistics import compare

    docs = studies()
    if not docs:
        return ""
    found = {labels: compare(doc) for labels, doc in docs.items()}
    names = [row.variant for row in next(iter(found.values()))]
    head = "| variant | " + " | ".join(f"{labels} labels" for labels in found) + " |"
    rows = [head, "|---" * (len(found) + 1) + "|"]
    for name in names:
        cells = [cell(r) for each in found.values() for r in each if r.variant == name]
        rows.append(f"| {name} | " + " | ".join(cells) + " |")
    picture = [IMAGE, ""] if len(docs) > 1 else []
    return "\n".join([*rows, "", *picture, *study_says(found), "", sources(list(docs.values()))])


def study_says(found: dict[str, tuple[Any, ...]]) -> list[str]:
    """Return what the study with each number of labels shows, and once what decides."""
    lines, closing = [], []
    for labels, rows in found.items():
        said = study_sentences(rows, same_setting=False)
        shown = " ".join(text for text in said if text != POOLED)
        lines.append(f"- With {labels} labels (n = {quantity(rows[0].n, 'seed')}): {shown}")
        closing = [f"- {POOLED}"] if POOLED in said else closing
    return [*lines, *closing]


def sources(docs: list[Any]) -> str:
    """Return n, hardware, precision and compute of all trials."""
    trials = [t for doc in docs for row in doc.rows for t in row.trials if t.state == "finished"]
    costs = [
        t.measured["train_flops"] + t.measured.get("pretrain_flops", 0)
        for t in trials
        if "train_flops" in t.measured
    ]
    hardware = sorted({name for doc in docs for name in doc.hardware})
    commits = sorted({commit[:9] for doc in docs for commit in doc.commits})
    precision = sorted({name for doc in docs for name in doc.precision})
    compute = f"{min(costs) / 1e12:.1f} to {max(costs) / 1e12:.1f} TFLOP a trial" if costs else ""
    return (
        "Test accuracy after the last epoch: mean +- standard deviation over the seeds, then the"
        " difference from training from scratch with its 95 % t interval, paired by seed and not"
        f" corrected for the number of variants. {len(trials)} trials; {compute};"
        f" {', '.join(hardware)}; {', '.join(precision)}; commit {', '.join(commits)}."
    )


def draw() -> None:
    """Draw accuracy against the number of labels, if there are several."""
    from pretraining_figure import figure

    from vitcli.runner.figure_style import encode

    if len(docs := studies()) > 1:
        by_count = {int(labels.replace(",", "")): doc for labels, doc in docs.items()}
        (RESULTS / FIGURE).write_bytes(encode(partial(figure, by_count), "png"))
