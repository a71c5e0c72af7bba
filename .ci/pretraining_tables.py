"""The tables, the sentences and the figure of docs/pretraining.md.

Three studies have their own number of labels each. The first variant of each is training from
scratch. The files in experiments/results/tasks hold the gates of the tasks.
"""

import json
import statistics
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "experiments" / "results"
STUDIES = {
    "study-pretraining-100": "100",
    "study-pretraining": "1,000",
    "study-pretraining-all": "50,000",
}
FIGURE = "study-pretraining.png"

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


def compared() -> dict[str, tuple[Any, ...]]:
    """Return number of labels -> the statistics of each variant, the baseline first."""
    from vitcli.runner.study.statistics import compare
    from vitcli.runner.study.table import read_document

    paths = {labels: RESULTS / f"{name}.json" for name, labels in STUDIES.items()}
    return {
        labels: compare(read_document(path.read_text()))
        for labels, path in paths.items()
        if path.exists()
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
    found = compared()
    if not found:
        return ""
    names = [row.variant for row in next(iter(found.values()))]
    head = "| variant | " + " | ".join(f"{labels} labels" for labels in found) + " |"
    rows = [head, "|---" * (len(found) + 1) + "|"]
    for name in names:
        cells = [cell(r) for each in found.values() for r in each if r.variant == name]
        rows.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join([*rows, "", *verdicts(found), "", sources()])


def verdicts(found: dict[str, tuple[Any, ...]]) -> list[str]:
    """Return one sentence for each number of labels."""
    return [f"- {verdict(labels, rows)}" for labels, rows in found.items()]


def verdict(labels: str, rows: tuple[Any, ...]) -> str:
    """Return which variants differ from training from scratch, by intervals that exclude 0."""
    baseline, *others = rows
    known = [row for row in others if row.ci_low is not None]
    start = f"With {labels} labels (n = {baseline.n} seeds)"
    if not known:
        return f"{start}, too few seeds have finished for an interval."
    better = [row.variant for row in known if row.ci_low > 0]
    worse = [row.variant for row in known if row.ci_high < 0]
    open_ = [row.variant for row in known if row.ci_low <= 0 <= row.ci_high]
    parts = [
        f"{', '.join(better)} {'is' if len(better) == 1 else 'are'} ahead of training from scratch"
        if better
        else "no variant is ahead of training from scratch at this compute"
    ]
    weak = [row.variant for row in known if row.ci_low > 0 and not row.joint_low > 0]
    parts[0] += f" ({', '.join(weak)} only without a correction for {len(known)} rows)" * bool(weak)
    parts += [f"{', '.join(worse)} {'is' if len(worse) == 1 else 'are'} behind"] if worse else []
    parts += [f"undecided: {', '.join(open_)}"] if open_ else []
    return f"{start}, {'; '.join(parts)}."


def sources() -> str:
    """Return n, hardware, precision and compute of all trials."""
    from vitcli.runner.study.table import read_document

    paths = [path for name in STUDIES if (path := RESULTS / f"{name}.json").exists()]
    docs = [read_document(path.read_text()) for path in paths]
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
    from vitcli.runner.figure_style import encode

    if len(found := compared()) > 1:
        (RESULTS / FIGURE).write_bytes(encode(partial(figure, found), "png"))


def figure(found: dict[str, tuple[Any, ...]]) -> Any:
    """Return the figure: a line for each variant, with the standard deviation over the seeds."""
    from matplotlib.figure import Figure

    from vitcli.runner.figure_style import PALETTE, add_legend_beside

    drawn = Figure(figsize=(7, 4.2), layout="compressed")
    axes = drawn.subplots()
    names = [row.variant for row in next(iter(found.values()))]
    counts = [int(labels.replace(",", "")) for labels in found]
    for i, name in enumerate(names):
        rows = [next(r for r in rows if r.variant == name) for rows in found.values()]
        done = [(n, r) for n, r in zip(counts, rows, strict=True) if r.score_mean is not None]
        axes.errorbar(
            [n * 1.03 ** (i - len(names) / 2) for n, _ in done],
            [r.score_mean for _, r in done],
            [r.score_sd or 0.0 for _, r in done],
            label=name,
            color=PALETTE[i % len(PALETTE)],
            marker="osD^vP*X"[i % 8],
            linestyle="--" if i == 0 else "-",
            capsize=2,
        )
    axes.set_xscale("log")
    axes.set_xticks(counts, [f"{n:,}" for n in counts])
    axes.minorticks_off()
    axes.set_xlabel("labelled training images of CIFAR-10")
    axes.set_ylabel("test accuracy, %")
    add_legend_beside(axes)
    return drawn
