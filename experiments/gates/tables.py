"""The tables of docs/ about the gates: of the tasks, and of what `predict` rejects."""

import json
import statistics
from pathlib import Path
from typing import Any

from vitcli.runner.report.tables import markdown_grid
from vitcli.runner.study.judgement import deciding_interval
from vitcli.runner.study.statistics import compare
from vitcli.runner.study.table import read_document
from vitcli.runner.text import percent

FOLDER = Path(__file__).resolve().parents[1] / "results" / "tasks"
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
TUNINGS = {
    "study-finetune": "120 photos of three classes, five folds; bundled model",
    "study-finetune-fashion": "Fashion-MNIST, 20 a class; bundled model",
    "study-finetune-fashion-1000": "Fashion-MNIST, 100 a class; bundled model",
    "study-finetune-mae": "CIFAR-10, 20 a class; `pretrain-mae`",
    "study-finetune-mae-1000": "CIFAR-10, 100 a class; `pretrain-mae`",
    "study-finetune-mae-fashion": "Fashion-MNIST, 20 a class; `pretrain-mae`",
    "study-finetune-mae-fashion-1000": "Fashion-MNIST, 100 a class; `pretrain-mae`",
}
"""Study of fine-tuning -> its pictures and the weights that it starts from."""


def gates() -> str:
    """Return the means of the numbers of each case over the seeds."""
    paths = {name: FOLDER / f"{name}.json" for name in GATES}
    found = {name: json.loads(path.read_text()) for name, path in paths.items() if path.exists()}
    rows = [
        [f"`{name}`", case, str(len(trials)), means(name, trials)]
        for name, document in found.items()
        for case, trials in trials_of(document).items()
    ]
    grid = markdown_grid(["gate", "case", "seeds", "mean of the numbers"], rows, [2])
    return f"{grid}\n\nMeasured by {', '.join(map(made_by, found.values()))}."


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


def tunings() -> str:
    """Return the accuracies of the studies of fine-tuning that have been run, one in a row."""
    paths = {title: FOLDER.parent / f"{name}.json" for name, title in TUNINGS.items()}
    docs = {t: read_document(path.read_text()) for t, path in paths.items() if path.exists()}
    first = next(iter(docs.values()))
    names = [row.variant for row in first.rows]
    rows = []
    for title, doc in docs.items():
        found = {row.variant: row for row in compare(doc)}
        probe = found["probe"]
        interval = deciding_interval(probe) or (probe.joint_low, probe.joint_high)
        low, high = (-(each or 0.0) for each in reversed(interval))
        cells = [f"{found[n].score_mean or 0.0:.1f} +- {found[n].score_sd:.1f}" for n in names]
        difference = f"{-(probe.difference or 0.0):+.1f} [{low:+.1f}, {high:+.1f}]"
        rows.append([title, str(probe.n), *cells, difference])
    header = ["pictures and weights", "seeds", *names, "tune minus probe"]
    grid = markdown_grid(header, rows, range(1, len(header)))
    made = {f"{', '.join(doc.hardware)}; {', '.join(doc.precision)}" for doc in docs.values()}
    commits = sorted({commit[:9] for doc in docs.values() for commit in doc.commits})
    return (
        f"{grid}\n\nTest accuracy in percent, mean +- standard deviation over the seeds, and the"
        " joint interval of the difference."
        f" {'; '.join(sorted(made))}; {first.date}; commits {', '.join(commits)}."
    )


def rejection() -> str:
    """Return the share of images that ``predict`` accepts, by classifier and kind of image."""
    document = json.loads((FOLDER.parent / "rejection.json").read_text())
    rows, rules = [], []
    for case, trials in document["results"].items():
        for kind, shares in trials[0].items():
            rules = [name for name in shares if not name.startswith("accuracy")]
            mean = {name: statistics.mean(each[kind][name] for each in trials) for name in shares}
            cells = [percent(mean[name], 1) for name in rules]
            if f"accuracy, {rules[0]}" in mean:
                right = (percent(mean[f"accuracy, {name}"], 1) for name in rules)
                cells = [f"{a} ({b} right)" for a, b in zip(cells, right, strict=True)]
            rows.append([f"{case}: {kind}", *cells])
    grid = markdown_grid(["images", *rules], rows, range(1, len(rules) + 1))
    return f"{grid}\n\nMeasured by {made_by(document)}."
