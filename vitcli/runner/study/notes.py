"""Notes below a study's table: method, uncertainty, environment and source."""

import re
import shlex
from collections.abc import Sequence

from vitcli.core.spec.slots import ATTENTIONS
from vitcli.runner.study.result import EARLY_STOPPING, MIN_PAIRS, StudyResult, VariantResult
from vitcli.runner.study.statistics import RowStatistics, num_tests, sampling_error
from vitcli.runner.text import capitalize, join_words, quantity

SAME_SETTING = (
    "Verdict: agrees if the difference exists, and its interval contains the source's drop and is"
    " not wider than it; differs if the interval excludes the drop; otherwise open."
)
OTHER_SETTING = (
    "Model, data or length of training differ from the source's, so only directions are compared:"
    " agrees or differs if the effect is better or worse; otherwise open."
)
COST = (
    "MFLOP: one forward pass; a multiply-add counts as two operations. images/s: training speed,"
    " median over the seeds; trials that ran at the same time slowed each other."
)
TUNING = (
    "Setting: chosen for each variant alone, by the best mean {} over the seeds on a validation"
    " split, never on the test images."
)


def notes(doc: StudyResult, rows: Sequence[RowStatistics]) -> dict[str, str]:
    """Return subject -> its sentences below the table; ``rows`` is ``compare(doc)``."""
    compared = {
        "difference": _differences(doc, rows),
        "plan": plan_note(doc),
        "test": _tests(doc, rows),
        "effect": _effects(doc, rows),
    }
    trained = {
        "cost": COST if doc.compares_models else "",
        "training": training_note(doc),
        "flops": _flops(doc),
        "compute": _compute(doc),
        "kernels": _kernels(doc),
        "environment": environment_note(doc),
        "source": _source(doc),
        "command": f"Command: {doc.command}",
        "one trial": _one_trial(doc),
    }
    has_candidates = any(row.candidates for row in doc.rows)
    every = {
        "score": _score(doc),
        **({} if doc.parts else compared),  # no row of a factorial study is compared
        "sampling": _sampling(doc, rows),
        "incomplete": _incomplete(rows),
        "tuning": TUNING.format(doc.headline.label) if has_candidates else "",
        **({"command": trained["command"]} if doc.origin else trained),
    }
    return {subject: text for subject, text in every.items() if text}


def _score(doc: StudyResult) -> str:
    text = f"n: finished trials, one per seed. {capitalize(doc.headline.label)}"
    if doc.origin:
        return (
            f"{text}: mean \u00b1 standard deviation over seeds. {doc.origin.reading} File:"
            f" {doc.origin.file} (SHA-256 {doc.origin.sha256[:12]})."
        )
    images = quantity(doc.num_test, "test image") if doc.num_test else "test images"
    if doc.folds:
        images = f"images of its fold ({doc.folds} folds)"
    when = "after the last epoch (never the best epoch)"
    base = doc.base_config.get(EARLY_STOPPING)
    if stopped := [row.variant for row in doc.rows if row.changes.get(EARLY_STOPPING, base)]:
        when = (
            f"after the last epoch, and of {join_words(stopped)} with the weights of the best epoch"
            " on validation images (train.early_stopping)"
        )
    return f"{text}: on the {images} {when}, mean \u00b1 standard deviation over seeds."


def _differences(doc: StudyResult, rows: Sequence[RowStatistics]) -> str:
    if len(doc.rows) < 2:
        return ""
    what = f"Difference: from {doc.rows[0].variant}, in {doc.headline.difference_unit}"
    known = {row.with_images for row in rows if row.ci_low is not None}
    if not known:
        unequal = " with unequal differences" * any(row.num_pairs >= MIN_PAIRS for row in rows)
        return f"{what}, paired by seed; an interval needs {MIN_PAIRS} pairs{unequal}."
    chances = {
        "new seeds and new test images": True in known,
        f"new seeds alone, because {_without_images(doc)}": False in known,
    }
    chance = ", or ".join(text for text, is_shown in chances.items() if is_shown)
    if doc.folds:
        chance = "new images, corrected for folds that share training images"
    text = (
        f"{what}, paired by seed, with the 95 % t interval for {chance}; it holds at every look,"
        " and is not adjusted for the rows."
    )
    if outside := [row.variant for row in rows if row.lies_outside]:
        text += (
            f" The difference of {join_words(outside)} lies outside its interval, which is what"
            " those of all looks have in common: later seeds differ from earlier ones."
        )
    return text


def _without_images(doc: StudyResult) -> str:
    """Return why intervals do not count the chance of the test images."""
    if not doc.origin and doc.headline.per_image is None:
        return f"{doc.headline.label} has no number for each test image"
    return "the predictions are not at hand"


def plan_note(doc: StudyResult) -> str:
    if len(doc.rows) < 2:
        return ""
    planned, seeds = doc.planned_seeds, {trial.seed for row in doc.rows for trial in row.trials}
    assumed = ""
    if doc.plan and not doc.plan.date and not doc.origin:
        assumed = " (none was recorded before the first result; these are the seeds that had one)"
    elif doc.origin and doc.plan:
        assumed = " (as the file or --plan says)"
    elif not doc.plan:
        option = "; --plan N says otherwise" if doc.origin else ""
        assumed = f" (assumed, from before the first result{option})"
    text = f"Planned: {quantity(planned, 'seed')}{assumed}."
    if doc.plan and (left_out := doc.plan.left_out(seeds)):
        text += (
            " The seeds of this table are a choice, so its verdicts do not hold at every look:"
            f" left out {join_words(map(str, left_out))}."
        )
    else:
        text += (
            " Verdicts hold however often you look: if differences are about normal, at most 5 %"
            " of such tables ever show a false one."
        )
    if len(seeds) > planned:
        text += f" Seeds beyond the {planned} planned ones need stronger evidence."
    if doc.other_plan:
        text += (
            f" The {doc.other_plan} planned_seeds of the file do not count, because the first plan"
            " was recorded before the first result."
        )
    if not (doc.plan and doc.plan.versions):
        return text
    names = [row.variant for row in doc.rows]
    lists = {
        "Added": [name for name in names if name not in doc.plan.versions[0]],
        "Edited": [name for name in names if name in doc.plan.edited],
    }
    said = [f"{what} after the first result: {join_words(a)}." for what, a in lists.items() if a]
    return " ".join(filter(None, [text, *said, doc.plan.advice]))


def _tests(doc: StudyResult, rows: Sequence[RowStatistics]) -> str:
    tests = "corrected t test" if doc.folds else "sign-flip test and t test, the larger p of both"
    text = f"p: {tests}, Holm-adjusted for {quantity(num_tests(doc), 'comparison')}."
    return text if any(row.p is not None for row in rows) else ""


def has_effects(doc: StudyResult, rows: Sequence[RowStatistics]) -> bool:
    """Return whether a table has a column of effects; crossed rows are not compared."""
    return not doc.parts and any(row.effect not in (None, "incomplete") for row in rows)


def _effects(doc: StudyResult, rows: Sequence[RowStatistics]) -> str:
    if not (doc.margin or has_effects(doc, rows)):
        return ""
    levels = sorted({f"{row.level:.2g}" for row in rows if row.level is not None}, key=float)
    reasons = []
    if levels:
        span = " to ".join(dict.fromkeys((levels[0], levels[-1])))
        reasons.append(
            f"the adjusted p is at most {span}, the level of this look, or was small enough at an"
            " earlier look"
        )
    if any(row.lacks_test and row.pooled_low is not None for row in rows):
        reasons.append(
            "the joint interval excludes 0, with the seed variance pooled over the rows (--details)"
        )
    why = ", or if ".join(reasons) or "p is small enough, which this table has not"
    text = f"Effect: better or worse if {why}"
    if not doc.margin:
        return f"{text}; otherwise undecided, which is not the same as no effect."
    unit = doc.headline.difference_unit
    return (
        f"{text}; equivalent if two one-sided t tests at 5 %, Holm-adjusted, place the difference"
        f" within the margin; otherwise undecided. Margin: {doc.margin:g}"
        f" {unit.removesuffix('s') if doc.margin == 1 else unit}."
    )


def _sampling(doc: StudyResult, rows: Sequence[RowStatistics]) -> str:
    error = sampling_error(doc)
    if error is None or doc.folds or any(row.with_images for row in rows):
        return ""
    return (
        f"Sampling error of the test set: \u00b1{error:.{doc.headline.digits}f} points (95 %) for"
        f" the baseline with {doc.num_test:,} images; the spread over seeds does not include it."
    )


def _incomplete(rows: Sequence[RowStatistics]) -> str:
    unfinished = "A row with an unfinished trial has no effect yet."
    diverged = (
        "A diverged trial counts as a result but has no number, so its row looks better than it is;"
        " the row, or every row if the baseline diverged, has no p-value and no effect."
    )
    is_shown = {
        unfinished: any(row.num_unfinished for row in rows),
        diverged: any(row.num_diverged for row in rows),
    }
    return " ".join(text for text in is_shown if is_shown[text])


def _flops(doc: StudyResult) -> str:
    trial = "TFLOP per trial: 10^12 operations of one training, forward and backward, with its"
    is_shown = {
        f"{trial} pre-training and its teacher's own training.": doc.compares_compute,
        "Equal compute: each variant has the most epochs, at least 1, whose operations are no more"
        f" than those of {doc.rows[0].variant if doc.rows else ''}.": doc.equal_compute,
    }
    return " ".join(text for text in is_shown if is_shown[text])


def training_note(doc: StudyResult) -> str:
    images = quantity(doc.num_train, "training image") if doc.num_train else ""
    data_hash = f"hash {doc.data_hash[:12]}" if doc.data_hash else ""
    data = ", ".join(filter(None, (images, data_hash)))
    limit = doc.base_config.get("train.limit_batches")
    short = "" if limit is None else f" of only {quantity(limit, 'batch')}"
    trained = dict.fromkeys(
        f"{row.variant}: {trial.epochs}"
        for row in doc.rows
        for trial in row.trials
        if trial.state == "finished" and trial.epochs != doc.epochs
    )
    but = f" (but {', '.join(trained)})" if trained else ""
    epochs = quantity(doc.epochs, "epoch")
    return f"Training: {epochs}{but}{short} on {doc.data}{f' ({data})' if data else ''}."


def _kernels(doc: StudyResult) -> str:
    by_kernels: dict[str, list[str]] = {}
    for row in doc.rows:
        if row.kernels:
            by_kernels.setdefault(" and ".join(row.kernels), []).append(row.variant)
    parts = [f"{name} kernels trained {join_words(rows)}" for name, rows in by_kernels.items()]
    plain = [row.variant for row in doc.rows if not _has_kernels(doc, row)]
    if plain and len(plain) < len(doc.rows):
        parts.append(f"the attention of {join_words(plain)} has no native or fused kernel")
    if not parts:
        return ""
    return f"Kernels: {'; '.join(parts)}. Times and images/s compare the kernels, too."


def _has_kernels(doc: StudyResult, row: VariantResult) -> bool:
    """Return whether the attention of a row has kernels; a part of a user's own has none."""
    fields = ("model.attention", "model.attention.name")
    is_other = {"experiment", "model.family"} & row.changes.keys()
    known = [row.changes] if is_other else [row.changes, doc.base_config]
    chosen = next((each[field] for each in known for field in fields if field in each), "softmax")
    name = str(chosen.get("name") if isinstance(chosen, dict) else chosen)
    return name in ATTENTIONS and ATTENTIONS[name].has_kernels


def environment_note(doc: StudyResult) -> str:
    commits = ", ".join(commit[:12] for commit in doc.commits)
    facts = [
        " and ".join(doc.hardware),
        f"{quantity(doc.threads, 'CPU thread')} per trial",
        " and ".join(doc.precision),
        f"{' and '.join(doc.kernels)} kernels" if doc.kernels else "",
        f"torch {' and '.join(doc.torch)}" if doc.torch else "",
        f"commit {commits}" if commits else "",
        "with uncommitted changes" if doc.dirty else "",
        f"continued, not bit-identical: {', '.join(doc.inexact)}" if doc.inexact else "",
        doc.date,
    ]
    return f"Run: {'; '.join(fact for fact in facts if fact)}."


def _compute(doc: StudyResult) -> str:
    trained = [trial for row in doc.rows for trial in row.trials if trial.state == "finished"]
    # Trials that share a pre-training state the same costs of the same run.
    costs_before = ("pretrain_seconds", "pretrain_flops")
    before = dict.fromkeys((t.seed, *map(t.number, costs_before)) for t in trained)
    seconds = sum(trial.train_seconds or 0.0 for trial in trained)
    seconds += sum(shared or 0.0 for _, shared, _ in before)
    if not seconds:
        return ""
    costs = [trial.number("train_flops") for trial in trained]
    flops = sum(filter(None, costs)) + sum(shared or 0.0 for _, _, shared in before)
    facts = [quantity(len(trained), "training")]
    if all(costs):
        is_large = flops >= 1e13
        facts.append(f"{flops / 1e15:.3g} PFLOP" if is_large else f"{flops / 1e12:.3g} TFLOP")
    if doc.hardware and all(name.endswith((" thread", " threads")) for name in doc.hardware):
        minutes = seconds * doc.threads / 60
        is_long = minutes >= 6
        facts.append(f"{minutes / 60:.3g} core hours" if is_long else f"{minutes:.3g} core minutes")
    else:
        facts.append(f"{seconds / 3600:.3g} hours of one device")
    if any(trial.number("teacher_flops") for trial in trained):
        facts.append("without the teachers' own training")
    if any(row.candidates for row in doc.rows):
        facts.append("without the settings that were tried but not chosen")
    return f"Compute: {', '.join(facts)}."


def _one_trial(doc: StudyResult) -> str:
    is_whole = not re.search(r" --(seeds|only) |\(", doc.command)
    if len(doc.rows) < 2 or not doc.rows[1].trials or not is_whole:
        return ""
    row = doc.rows[1]
    only = f"--only {shlex.quote(row.variant)} --seeds {row.trials[0].seed}"
    return f"One trial and its baseline: {doc.command} {only}"


def _source(doc: StudyResult) -> str:
    if doc.reference is None or not doc.reference.rows or doc.parts:
        return ""
    label = doc.headline.label
    return (
        f"Source: {doc.reference.source}. Source's drop: the source's {label} of the variant minus"
        f" that of the baseline. {SAME_SETTING if doc.same_setting else OTHER_SETTING}"
    )
