"""Verdicts on accuracies, sizes and times that a source states."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from experiments.claims.by_studies import (
    MIN_SEEDS,
    difference_text,
    is_gain,
    of_parts,
    rows_of,
    seeds_of,
    with_source,
)
from experiments.claims.item import Finding
from experiments.claims.result_files import NOT_RUN, Results, not_run
from vitcli.runner.run.record import RunRecord
from vitcli.runner.study.result import StudyResult
from vitcli.runner.study.significance import ALPHA, MeanError
from vitcli.runner.study.statistics import scores
from vitcli.runner.text import interval, quantity

ABOUT = 1.0
"""Percentage points by which an accuracy may differ from a stated one."""
SIZE_ABOUT = 0.05
"""Millions of parameters by which a size may differ from a stated one, which has one decimal."""
EPOCHS = "ablation-epochs"
CLASSIFICATION = "classification-cifar10"
AUGMENTED = "cifar10-small-aug"
EARLY = 10
"""The first epoch of the report's loss curve whose accuracy it states."""
NO_GPU = "the training needs a GPU"


def agree(values: Sequence[float], stated: float) -> tuple[bool | None, str]:
    """Return whether accuracies in percent agree with a stated one, and the numbers as a text.

    They agree if their 95 % interval lies within ``ABOUT`` of it, and differ if it lies outside.
    Otherwise, and with fewer than ``MIN_SEEDS`` seeds, this is open: None.
    """
    text = ", ".join(f"{value:.2f} %" for value in values) or "no number"
    if len(values) < MIN_SEEDS:
        return None, f"{text} against {stated} %; fewer than {MIN_SEEDS} seeds give no interval"
    low, high = (end - stated for end in MeanError.of_seeds(values).interval(ALPHA))
    text = f"{text}; minus {stated} %: {interval(low, high, 2)} points"
    if low >= -ABOUT and high <= ABOUT:
        return True, text
    return False if low > ABOUT or high < -ABOUT else None, text


def accuracy_of_notes(results: Results) -> Finding:
    """Judge the accuracy of the training notes; the study of epochs has the same training."""
    doc = results.study(EPOCHS) or results.study("cifar10-tiny")
    if doc is None:
        return not_run("cifar10-tiny is not recorded")
    values = list(scores(doc.rows[0], doc.headline).values())
    agrees, text = agree(values, 71.51)
    return with_source(doc, of_parts([agrees]), text, len(values))


def minutes_of_notes(results: Results) -> Finding:
    """Say how long the training of the notes takes here; they name no machine."""
    doc = results.study("cifar10-tiny")
    if doc is None:
        return not_run("cifar10-tiny is not recorded")
    minutes = (doc.rows[0].trials[0].train_seconds or 0) / 60
    text = f"the notes name no machine; here 50 epochs at 0.001 took {minutes:.0f} min"
    return with_source(doc, "no verdict", text, 1)


def more_epochs(results: Results) -> Finding:
    """Judge whether 100 epochs are more accurate than the 50 of the training notes."""
    if results.study(EPOCHS) is None:
        return not_run("six trainings take about four hours of a CPU")
    found = rows_of(results, EPOCHS, "100-epochs")
    if isinstance(found, Finding):
        return found
    doc, rows = found
    base, row = rows.values()
    text = f"100-epochs {difference_text(row, base)}"
    return with_source(doc, of_parts([is_gain(row)]), text, seeds_of(rows))


def classification(
    variant: str, experiment: str, millions: float, accuracy: float
) -> Callable[[Results], Finding]:
    """Return a judge of a row of the report's classification table.

    Its size is computed, and its accuracy is that of our study. Its hours depend on the machine.
    """

    def judge(results: Results) -> Finding:
        from experiments.claims.by_computation import parameters

        count = parameters(experiment)
        has_size = abs(count / 1e6 - millions) < SIZE_ABOUT
        size = f"{count:,} parameters, {'as stated' if has_size else 'not as stated (S2-33)'}"
        doc = results.study(CLASSIFICATION)
        values = [100 * (trial.test_score or 0) for trial in finished(doc, variant)]
        if doc is None or not values:
            return Finding("no verdict", f"{size}; accuracy {not_run(NO_GPU).found}", "")
        agrees, text = agree(values, accuracy)
        return with_source(doc, of_parts([has_size, agrees]), f"{size}; {text}", len(values))

    return judge


def finished(doc: StudyResult | None, variant: str) -> list[RunRecord]:
    """Return the finished trials of a row; none if the study or the row is not recorded."""
    rows = [row for row in doc.rows if row.variant == variant] if doc else []
    return [trial for row in rows for trial in row.trials if trial.state == "finished"]


def loss_curve(results: Results) -> Finding:
    """Judge the accuracies after 10 and 300 epochs of the report's ViT with augmentation.

    Trainings that were stopped after epoch 10 judge the first one, also before the study has run.
    """
    doc = results.study(CLASSIFICATION)
    curves = [dict(trial.curve) for trial in finished(doc, "vit-small-aug")]
    stopped = results.stopped_runs(AUGMENTED, EARLY)
    if not (doc and curves) and not stopped:
        return not_run(NO_GPU)
    early = [100 * run["test_accuracy"] for run in stopped]
    parts, texts = [], []
    for epoch, stated in ((EARLY, 28.3), (300, 93.1)):
        own = early if epoch == EARLY else []
        values = own or [100 * curve[epoch] for curve in curves if epoch in curve]
        agrees, text = agree(values, stated)
        parts.append(agrees)
        source = f" ({AUGMENTED} stopped, n = {quantity(len(own), 'seed')})" if own else ""
        texts.append(f"epoch {epoch}: {text if values else NOT_RUN.format(NO_GPU)}{source}")
    word, text = of_parts(parts), ". ".join(texts)
    if doc and curves:
        found = with_source(doc, word, text, len(curves))
    else:
        found = Finding(word, text, "", f"after {EARLY} of 300 epochs")
    hardware = dict.fromkeys([found.hardware, *(run["hardware"] for run in stopped)])
    return replace(found, hardware="; ".join(filter(None, hardware)))
