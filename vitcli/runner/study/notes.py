"""Notes below a study's table: method, uncertainty, environment and source."""

import re
import shlex
from collections.abc import Collection, Mapping, Sequence

from vitcli.core.spec.slots import ATTENTIONS
from vitcli.runner.study.looks import level, seeds_needed
from vitcli.runner.study.result import EARLY_STOPPING, MIN_PAIRS, StudyResult, VariantResult
from vitcli.runner.study.significance import ALPHA, POWER
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
PRETRAINED = ("pretrain_seconds", "pretrain_flops")
"""What a trial took from the result of its pre-training."""
COMPARISONS = ("difference", "plan", "test", "effect", "detectable")
"""Notes on the comparison of each row with the baseline, which factorial studies do not make."""
OF_OWN_TRIALS = (
    *("cost", "flops", "training", "compute", "kernels", "environment", "source", "one trial"),
)
"""Notes on what vitcli knows of the trials that it has trained."""


def notes(doc: StudyResult, rows: Sequence[RowStatistics]) -> dict[str, str]:
    """Return subject -> its sentences below the table; ``rows`` is ``compare(doc)``."""
    every = {
        "score": _score(doc),
        "difference": _differences(doc, rows),
        "plan": plan_note(doc),
        "test": _tests(doc, rows),
        "effect": _effects(doc, rows),
        "detectable": _detectable(doc, rows),
        "sampling": _sampling(doc, rows),
        "incomplete": _incomplete(rows),
        "tuning": _tuning(doc),
        "cost": COST if doc.compares_models else "",
        "training": _training(doc),
        "flops": _flops(doc),
        "compute": _compute(doc),
        "kernels": _kernels(doc),
        "environment": _environment(doc),
        "source": _source(doc),
        "command": f"Command: {doc.command}",
        "one trial": _one_trial(doc),
    }
    hidden = (*COMPARISONS, "source") if doc.parts else OF_OWN_TRIALS if doc.origin else ()
    return {subject: text for subject, text in every.items() if text and subject not in hidden}


def _score(doc: StudyResult) -> str:
    name = capitalize(doc.headline.label)
    if doc.origin:
        return (
            f"n: finished trials, one per seed. {name}: mean \u00b1 standard deviation over seeds."
            f" {doc.origin.reading} File: {doc.origin.file} (SHA-256 {doc.origin.sha256[:12]})."
        )
    images = quantity(doc.num_test, "test image") if doc.num_test else "test images"
    over, sets = "seeds", "initialisation, data order and augmentation"
    if doc.folds:
        images, over, sets = "images of its fold", f"seeds ({doc.folds} folds)", f"its fold, {sets}"
    when = "after the last epoch (never the best epoch)"
    best = "with the weights of the best epoch on validation images (train.early_stopping)"
    base = doc.base_config.get(EARLY_STOPPING)
    stopped = [row.variant for row in doc.rows if row.changes.get(EARLY_STOPPING, base)]
    if stopped:
        some = f"after the last epoch, and of {join_words(stopped)} {best}"
        when = best if len(stopped) == len(doc.rows) else some
    return (
        f"n: finished trials, one per seed. {name}: on the {images} {when}, mean \u00b1 standard"
        f" deviation over {over}. A seed sets {sets}."
    )


def _differences(doc: StudyResult, rows: Sequence[RowStatistics]) -> str:
    if len(doc.rows) < 2:
        return ""
    what = f"Difference: from {doc.rows[0].variant}, in {doc.headline.difference_unit}"
    if not any(row.ci_low is not None for row in rows):
        return f"{what}, paired by seed; an interval needs {MIN_PAIRS} pairs."
    known = {row.with_images for row in rows if row.ci_low is not None}
    chances = {
        "new seeds and new test images": True in known,
        "new seeds alone, because the predictions are not at hand": False in known,
    }
    chance = ", or ".join(text for text, is_shown in chances.items() if is_shown)
    if doc.folds:
        chance = "new images, corrected for folds that share training images"
    apart = [
        row.variant
        for row in rows
        if row.difference is not None and row.ci_low is not None and row.ci_high is not None
        if not row.ci_low <= row.difference <= row.ci_high
    ]
    beside = (
        f" Earlier looks place it beside the difference of {join_words(apart)}." if apart else ""
    )
    return (
        f"{what}, paired by seed, with the 95 % t interval for {chance}; it holds at every look,"
        f" and is not adjusted for the rows.{beside}"
    )


def plan_note(doc: StudyResult) -> str:
    """Return how many seeds were planned, and what that means for verdicts."""
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
    if left_out := _left_out(doc, seeds):
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
    planned_rows = doc.plan.variants if doc.plan else ()
    added = [row.variant for row in doc.rows if row.variant not in planned_rows]
    if planned_rows and added:
        text += f" Added after the first result: {join_words(added)}."
    if planned_rows and planned_rows[0] != doc.rows[0].variant:
        text += f" The planned baseline was {planned_rows[0]}."
    return text


def _left_out(doc: StudyResult, seeds: Collection[int]) -> list[int]:
    order = doc.plan.order if doc.plan else ()
    shown = [place for place, seed in enumerate(order) if seed in seeds]
    return [seed for seed in order[: max(shown, default=0)] if seed not in seeds]


def _sentences(texts: Mapping[str, object]) -> str:
    return " ".join(text for text, is_shown in texts.items() if is_shown)


def _tests(doc: StudyResult, rows: Sequence[RowStatistics]) -> str:
    if len(rows) < 2:
        return ""
    m = num_tests(doc)
    comparisons, seeds = quantity(m, "comparison"), quantity(seeds_needed(m), "seed")
    tests = "corrected t test" if doc.folds else "sign-flip test and t test, the larger p of both"
    is_few = not doc.folds and any(row.lacks_test for row in rows)
    return _sentences(
        {
            f"p: {tests}, Holm-adjusted for {comparisons}.": any(row.p is not None for row in rows),
            f"With {comparisons}, a p-value needs a plan of at least {seeds}, and all of them.": (
                is_few
            ),
        }
    )


def has_effects(doc: StudyResult, rows: Sequence[RowStatistics]) -> bool:
    """Return whether a table has a column of effects; crossed rows are not compared."""
    return not doc.parts and any(row.effect not in (None, "incomplete") for row in rows)


def _effects(doc: StudyResult, rows: Sequence[RowStatistics]) -> str:
    if not (doc.margin or has_effects(doc, rows)):
        return ""
    levels = sorted({f"{row.level:.2g}" for row in rows if row.level is not None}, key=float)
    span = " to ".join(dict.fromkeys((levels[0], levels[-1]))) if levels else ""
    reasons = [
        f"the adjusted p is at most {span}, the level of this look, or was small enough at an"
        " earlier look"
    ] * bool(levels)
    if any(row.lacks_test and row.pooled_low is not None for row in rows):
        reasons.append(
            "the joint interval excludes 0, with the seed variance pooled over the rows (--details)"
        )
    why = ", or if ".join(reasons)
    text = f"Effect: better or worse if {why or 'p is small enough, which this table has not'}"
    if not doc.margin:
        return f"{text}; otherwise undecided, which is not the same as no effect."
    unit = doc.headline.difference_unit
    return (
        f"{text}; equivalent if two one-sided t tests at 5 %, Holm-adjusted, place the difference"
        f" within the margin; otherwise undecided. Margin: {doc.margin:g}"
        f" {unit.removesuffix('s') if doc.margin == 1 else unit}."
    )


def _detectable(doc: StudyResult, rows: Sequence[RowStatistics]) -> str:
    known = [row.detectable for row in rows if row.detectable is not None]
    if not known:
        return ""
    low, high = (f"{value:.{doc.headline.digits}f}" for value in (min(known), max(known)))
    span = low if low == high else f"{low} to {high}"
    what = "by the pooled joint interval" if any(row.lacks_test for row in rows) else "by p"
    limit = level(doc.planned_seeds, doc.planned_seeds, ALPHA / num_tests(doc))
    return (
        f"Smallest detectable difference: {span}. These seeds find it with probability {POWER} at"
        f" level {limit:.2g}, that of the planned look, {what}."
    )


def _sampling(doc: StudyResult, rows: Sequence[RowStatistics]) -> str:
    error = sampling_error(doc)
    if error is None or doc.folds or any(row.with_images for row in rows):
        return ""
    return (
        f"Sampling error of the test set: \u00b1{error:.{doc.headline.digits}f} points (95 %,"
        f" normal approximation of the binomial) for the baseline with {doc.num_test:,} images."
        " The spread over seeds does not include it."
    )


def _incomplete(rows: Sequence[RowStatistics]) -> str:
    return _sentences(
        {
            "A row with an unfinished trial has no effect yet.": any(
                row.num_unfinished for row in rows
            ),
            "A diverged trial counts as a result but has no number, so its row looks better than"
            " it is; the row has no p-value and no effect. If the baseline diverged, no row has"
            " one.": any(row.num_diverged for row in rows),
        }
    )


def _tuning(doc: StudyResult) -> str:
    text = (
        f"Setting: chosen for each variant alone, by the best mean {doc.headline.label} over the"
        " seeds on a validation split, never on the test images."
    )
    return text if any(row.candidates for row in doc.rows) else ""


def _flops(doc: StudyResult) -> str:
    return _sentences(
        {
            "TFLOP per trial: 10^12 operations of one training, forward and backward, with its"
            " pre-training and its teacher's own training.": doc.compares_compute,
            "Equal compute: each variant has the most epochs, at least 1, whose operations are no"
            f" more than those of {doc.rows[0].variant if doc.rows else ''}.": doc.equal_compute,
        }
    )


def _training(doc: StudyResult) -> str:
    images = quantity(doc.num_train, "training image") if doc.num_train else ""
    data_hash = f"hash {doc.data_hash[:12]}" if doc.data_hash else ""
    data = ", ".join(filter(None, (images, data_hash)))
    limit = doc.base_config.get("train.limit_batches")
    short = "" if limit is None else f" of only {quantity(limit, 'batch')}"
    trained = [
        f"{row.variant}: {trial.epochs}"
        for row in doc.rows
        for trial in row.trials
        if trial.state == "finished" and trial.epochs != doc.epochs
    ]
    but = f" (but {', '.join(dict.fromkeys(trained))})" if trained else ""
    epochs = quantity(doc.epochs, "epoch")
    return f"Training: {epochs}{but}{short} on {doc.data}{f' ({data})' if data else ''}."


def _kernels(doc: StudyResult) -> str:
    """Return which rows were trained by other kernels, so that their times say little."""
    by_kernels = {
        " and ".join(kernels): [row.variant for row in doc.rows if row.kernels == kernels]
        for kernels in dict.fromkeys(row.kernels for row in doc.rows if row.kernels)
    }
    parts = [f"{name} kernels trained {join_words(rows)}" for name, rows in by_kernels.items()]
    plain = [row.variant for row in doc.rows if not _has_kernels(doc, row)]
    if plain and len(plain) < len(doc.rows):
        parts.append(
            f"the attention of {join_words(plain)} has no native or fused kernel, that of the other"
            " rows has one"
        )
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


def _environment(doc: StudyResult) -> str:
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
    before = dict.fromkeys((trial.seed, *map(trial.measured.get, PRETRAINED)) for trial in trained)
    seconds = sum(trial.train_seconds or 0.0 for trial in trained)
    seconds += sum(shared or 0.0 for _, shared, _ in before)
    if not seconds:
        return ""
    on_cpu = doc.hardware and all(name.endswith((" thread", " threads")) for name in doc.hardware)
    seconds *= doc.threads if on_cpu else 1
    is_long = seconds >= 360 or not on_cpu
    unit = f"core {'hours' if is_long else 'minutes'}" if on_cpu else "hours of one device"
    costs = [trial.measured.get("train_flops") for trial in trained]
    flops = sum(filter(None, costs)) + sum(shared or 0.0 for _, _, shared in before)
    has_teacher = any(trial.measured.get("teacher_flops") for trial in trained)
    rest = {
        "the teachers' own training": has_teacher,
        "the settings that were tried but not chosen": any(row.candidates for row in doc.rows),
    }
    without = " and ".join(text for text, is_left_out in rest.items() if is_left_out)
    facts = [
        quantity(len(trained), "training"),
        _operations(flops) if all(costs) else "",
        f"{seconds / (3600 if is_long else 60):.3g} {unit}",
    ]
    return f"Compute: {', '.join(filter(None, facts))}{without and f', without {without}'}."


def _operations(flops: float) -> str:
    return f"{flops / 1e15:.3g} PFLOP" if flops >= 1e13 else f"{flops / 1e12:.3g} TFLOP"


def _one_trial(doc: StudyResult) -> str:
    if (
        len(doc.rows) < 2
        or not doc.rows[1].trials
        or re.search(r" --(seeds|only) |\(", doc.command)
    ):
        return ""
    row = doc.rows[1]
    only = f"--only {shlex.quote(row.variant)} --seeds {row.trials[0].seed}"
    return f"One trial and its baseline: {doc.command} {only}"


def _source(doc: StudyResult) -> str:
    if doc.reference is None or not doc.reference.rows:
        return ""
    label = doc.headline.label
    return (
        f"Source: {doc.reference.source}. Source's drop: the source's {label} of the variant minus"
        f" that of the baseline. {SAME_SETTING if doc.same_setting else OTHER_SETTING}"
    )


def search_notes(doc: StudyResult) -> list[str]:
    """Return the sentences below the table of a search."""
    assert doc.searched is not None
    searched = doc.searched
    states = ", ".join(f"{count} {state}" for state, count in searched.states.items())
    total = sum(searched.states.values())
    skipped = "; ".join(f"{rule} ({count:,})" for rule, count in searched.skipped.items())
    every = [
        f"{quantity(total, 'trial')} of {searched.num_trials} ({states}); sampler"
        f" {searched.sampler}, seed {searched.seed}; pruning {searched.pruning}.",
        f"Score: {doc.headline.label} on the validation split after the last epoch, one training"
        " each. The search reads no test image.",
        "The best of many scores is too high: chance is part of why it was chosen.",
        "Front: * has the best score of all models that are not larger (Pareto front).",
        f"Points that were not trained, and do not count: {skipped}." if skipped else "",
        _training(doc),
        _environment(doc),
        f"Command: {doc.command}",
    ]
    return [note for note in every if note]
