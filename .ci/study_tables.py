"""The tables of the studies in README.md and docs/, and the sentences about them."""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sentences import POOLED, study_sentences

from vitcli.runner.experiment.config import config_hash, load_experiment
from vitcli.runner.experiment.diff import TEACHER_WEIGHTS, differences, with_data_defaults
from vitcli.runner.experiment.yaml_text import format_value
from vitcli.runner.report.tables import markdown_grid, to_markdown
from vitcli.runner.run.record import RunRecord, read_record
from vitcli.runner.study.collect import study_result
from vitcli.runner.study.judgement import deciding_interval, direction, is_withheld
from vitcli.runner.study.notes import notes
from vitcli.runner.study.result import StudyResult
from vitcli.runner.study.states import kept_numbers
from vitcli.runner.study.statistics import RowStatistics, compare
from vitcli.runner.study.table import build, build_details, read_document, render
from vitcli.runner.text import join_words, portable, quantity, rough_duration

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "experiments" / "results"
SHORT = ("variant", "accuracy, %", "difference [95 % CI]", "p (Holm)", "effect", "diverged")
"""Columns of the table in README."""
COMPARED = (
    "ablation-norm", "ablation-positions", "ablation-patch-size", "ablation-augmentation",
    "study-ingredients", "ablation-fair",
)  # fmt: skip
"""Studies of docs/results/parts.md."""
BRIEF = (
    *("variant", "parameters", "MFLOP per image", "n", "accuracy, %", "difference [95 % CI]"),
    "TFLOP per trial",
)
"""Columns of the tables in docs/results/parts.md, whose studies have too few seeds."""
BRIEF_NOTES = ("flops", "training", "compute", "environment", "command", "one trial")
LENGTHS = ("ablation-length-5", "ablation-length-15", "ablation-cifar10-full")
"""Studies with the same model and recipe; each has a schedule of its own length."""
OF_LABELS = {
    "100": "study-pretraining-100",
    "1,000": "study-pretraining",
    "50,000": "study-pretraining-all",
}
"""Number of labels -> the study of pre-trainings with it."""
LABELS = "labelled training images of CIFAR-10"
Rows = tuple[RowStatistics, ...]


def document(name: str) -> StudyResult:
    """Return the committed result of a study, or that of a bundled model."""
    if (folder := ROOT / "vitcli" / "pretrained" / name).is_dir():
        return document_of(read_record(folder))
    return read_document((RESULTS / f"{name}.json").read_text())


def document_of(run: RunRecord) -> StudyResult:
    """Return a finished run as the result of a study with one row."""
    run = run.changed(config_hash=config_hash(run.spec), result=kept_numbers(run))
    return study_result(
        {"baseline": [run]},
        spec=run.spec,
        name=str(run.experiment),
        command=training_command(run),
        threads=run.session.threads or 1,
        num_comparisons=0,
        where=run.name,
    )


def training_command(run: RunRecord) -> str:
    words = ["vitcli", "train", str(run.experiment)]
    file = with_data_defaults(load_experiment(words[-1]).spec, run.spec, run.meta)
    for field, (_, used) in differences(file, run.spec).items():
        if field not in ("seed", TEACHER_WEIGHTS):
            words += ["-s", f"{field}={format_value(portable(used))}"]
    return shlex.join([*words, "--seed", str(run.seed)])


def study(name: str) -> str:
    """Return the table of a study, as ``vitcli ablate --format md`` prints it."""
    return render(document(name), "md")


def study_details(name: str) -> str:
    """Return the table of ``vitcli ablate --details``: how certain each difference is."""
    return to_markdown(build_details(document(name)))


def study_short(name: str) -> str:
    """Return the columns of a study that README shows, and the length of its trainings."""
    doc = document(name)
    seeds = max(len(row.trials) for row in doc.rows)
    brief = doc.model_copy(update={"hypothesis": ""})
    length = f"{seeds} seeds, {doc.epochs} epochs on {doc.data}."
    return f"{_columns(brief, SHORT)}\n\n{length}\n\n{costs(name)}"


def study_brief(name: str) -> str:
    """Return what docs/results/parts.md shows: columns, how the trials ran, what the rows show."""
    doc = document(name)
    every = notes(doc, compare(doc))
    table = _columns(doc, BRIEF, tuple(every[each] for each in BRIEF_NOTES if each in every))
    return f"{table}\n\n**What the table shows:**\n\n{study_says(name)}"


def _columns(doc: StudyResult, headers: tuple[str, ...], texts: tuple[str, ...] = ()) -> str:
    """Return some columns of the table of a study, with these footnotes only."""
    full = build(doc)
    chosen = [i for i, column in enumerate(full.columns) if column.header in headers]
    columns = tuple(full.columns[i] for i in chosen)
    rows = tuple(tuple(row[i] for i in chosen) for row in full.rows)
    return to_markdown(replace(full, columns=columns, rows=rows, notes=texts))


def study_says(name: str) -> str:
    """Return what the rows of a study show, as a list of sentences."""
    doc = document(name)
    return listed(study_sentences(compare(doc), same_setting=bool(doc.same_setting)))


def costs(*names: str) -> str:
    """Return how much compute each study took, and the command that repeats one of its trials."""
    said = []
    for doc in map(document, names):
        every = notes(doc, compare(doc))
        what, _, command = every.get("one trial", "").partition(": ")
        again = f" {what}: `{command}`" if command else ""
        said.append(f"`{doc.name}`: {every['compute'].removeprefix('Compute: ')}{again}")
    return listed(said)


def listed(sentences: Sequence[str]) -> str:
    """Return sentences as a list."""
    return "\n".join(f"- {sentence}" for sentence in sentences)


def trainings(*names: str) -> str:
    """Return a table of experiments, with a row for each."""
    rows = []
    for doc in map(document, names):
        (found,), (row,) = compare(doc), doc.rows
        by = "; ".join([*doc.hardware, *doc.precision, doc.date, f"commit {doc.commits[0][:9]}"])
        sizes = [f"{row.parameters:,}", str(doc.epochs), str(found.n)]
        time = rough_duration(found.seconds_mean)
        rows.append([f"`{doc.name}`", *sizes, _cell(found), time, by])
    header = ["experiment", "parameters", "epochs", "seeds", "test accuracy, last epoch", "time"]
    return markdown_grid([*header, "trained on"], rows, range(1, 6))


def lengths() -> dict[int, Rows]:
    """Return number of epochs -> the rows, of the studies of lengths that have been run."""
    docs = [document(name) for name in LENGTHS if (RESULTS / f"{name}.json").exists()]
    return {doc.epochs: compare(doc) for doc in docs}


def interval_of(row: RowStatistics) -> tuple[float, float] | None:
    """Return the joint interval of a row; None if a training diverged or there is none."""
    if row.num_diverged or row.joint_low is None or row.joint_high is None:
        return None
    return deciding_interval(row) or (row.joint_low, row.joint_high)


def lengths_say() -> str:
    """Return a sentence for each part: its difference at each length, and whether it changes."""
    found = lengths()
    sentences = []
    for name in [row.variant for row in found[min(found)][1:]]:
        rows = {epochs: row for epochs in found for row in found[epochs] if row.variant == name}
        said = [f"{_difference(row)} after {epochs} epochs" for epochs, row in rows.items()]
        intervals = [interval_of(rows[epochs]) for epochs in (min(rows), max(rows))]
        sentences.append(f"`{name}`: {join_words(said)}. {_change(*intervals)}")
    return f"{listed(sentences)}\n\n{costs(LENGTHS[1])}"


def _difference(row: RowStatistics) -> str:
    if row.num_diverged:
        return f"diverged in {row.num_diverged} of {row.n + row.num_diverged} trainings"
    low, high = interval_of(row) or (float("nan"), float("nan"))
    return f"{row.difference:+.2f} [{low:+.2f}, {high:+.2f}]"


def _change(first: tuple[float, float] | None, last: tuple[float, float] | None) -> str:
    """Return what two intervals say about the change of a difference."""
    if first is None or last is None:
        return "A part with which trainings diverge has no difference to compare."
    if last[1] < first[0]:
        return "The longer the training, the more its removal costs."
    if last[0] > first[1]:
        return "The longer the training, the less its removal costs."
    return "The intervals overlap: whether the difference depends on the length is undecided."


def on_two_data_sets(first: str, second: str) -> str:
    """Return the differences of a study on two data sets, and which of them agree."""
    docs = [document(name) for name in (first, second)]
    (base, *pairs) = zip(*map(compare, docs), strict=True)
    rows = [["baseline", _mean(base[0]), "", _mean(base[1]), "", ""]]
    for pair in pairs:
        cells = [cell for row in pair for cell in (_mean(row), _difference(row))]
        rows.append([pair[0].variant, *cells, _agreement(*pair)])
    columns = [column for doc in docs for column in (f"{doc.data}, %", "difference")]
    grid = markdown_grid(["variant", *columns, "direction"], rows, range(1, 5))
    return f"{grid}\n\n{costs(second)}"


def _agreement(first: RowStatistics, second: RowStatistics) -> str:
    """Return whether two differences of the same part have the same direction."""
    for row in (first, second):
        if is_withheld(row.effect):
            return str(row.effect)
    one, other = direction(first.effect), direction(second.effect)
    if one is None or other is None:
        return "undecided"
    return "same" if one == other else "opposite"


def of_labels() -> dict[str, Rows]:
    """Return number of labels -> the rows of its study. The first row is training from scratch."""
    return {labels: compare(document(name)) for labels, name in OF_LABELS.items()}


def pretraining() -> str:
    """Return test accuracy by variant and number of labels, and what it shows."""
    found = of_labels()
    names = [row.variant for row in next(iter(found.values()))]
    rows = [
        [n, *(_cell(r) for rows in found.values() for r in rows if r.variant == n)] for n in names
    ]
    header = ["variant", *(f"{labels} labels" for labels in found)]
    lines: list[str] = []
    pooled: list[str] = []
    for labels, each in found.items():
        said = study_sentences(each, same_setting=False)
        shown = " ".join(text for text in said if text != POOLED)
        lines.append(f"With {labels} labels (n = {quantity(each[0].n, 'seed')}): {shown}")
        pooled = [POOLED] if POOLED in said else pooled
    docs = [document(name) for name in OF_LABELS.values()]
    hardware, precision = (
        ", ".join(sorted({text for doc in docs for text in getattr(doc, name)}))
        for name in ("hardware", "precision")
    )
    commits = ", ".join(sorted({commit[:9] for doc in docs for commit in doc.commits}))
    note = (
        "Test accuracy after the last epoch: mean +- standard deviation over the seeds, then the"
        " difference from training from scratch with its 95 % t interval, paired by seed and not"
        f" corrected for the number of variants. {hardware}; {precision}; commits {commits}."
    )
    shown = listed([*lines, *pooled])
    return f"{markdown_grid(header, rows)}\n\n{shown}\n\n{note}\n\n{costs(*OF_LABELS.values())}"


def _cell(row: RowStatistics) -> str:
    """Return accuracy and difference, such as ``48.14 +- 0.32 % (+5.10 [+4.20, +6.00])``."""
    if row.score_mean is None:
        return "not finished"
    interval = ""
    if row.ci_low is not None:
        interval = f" ({row.difference:+.2f} [{row.ci_low:+.2f}, {row.ci_high:+.2f}])"
    return f"{_mean(row)} %{interval}"


def _mean(row: RowStatistics) -> str:
    """Return the mean over the seeds and its spread, such as ``48.14 +- 0.32``."""
    spread = "" if row.score_sd is None else f" +- {row.score_sd:.2f}"
    return "" if row.score_mean is None else f"{row.score_mean:.2f}{spread}"
