"""Notes below a study's table: method, uncertainty, environment and source."""

import re
import shlex
from collections.abc import Collection, Sequence

from vitcli.core.spec.slots import ATTENTIONS
from vitcli.core.spec.task import TeacherSpec
from vitcli.runner.study.looks import level, seeds_needed
from vitcli.runner.study.result import EARLY_STOPPING, MIN_PAIRS, StudyResult, VariantResult
from vitcli.runner.study.significance import ALPHA, MAX_EXACT_PAIRS, POWER, RESAMPLES
from vitcli.runner.study.statistics import RowStatistics, num_tests, sampling_error
from vitcli.runner.text import capitalize, join_words, percent, quantity

VERDICTS = (
    "Verdict: by the effect, and by the joint interval, whose seed variance is pooled if there are"
    " too few seeds for a p-value. replicates: better or worse, and the interval contains the"
    " source's drop and is not wider than the drop; too wide to say: it contains the drop, but not"
    " so; not replicated: undecided, and the interval excludes the drop; opposite: better where the"
    " source is worse, or the reverse; smaller or larger: the source's direction, and the interval"
    " excludes the drop."
)
DIRECTIONS = (
    "Model, data or length of training differ from the source's, so only directions are compared:"
    " same or opposite if the effect is better or worse; otherwise undecided, also if the source's"
    " drop is 0."
)
PRETRAINED = ("pretrain_seconds", "pretrain_flops")
"""What a trial took from the result of its pre-training."""
TEACHER = ("task.teacher", "task.teacher.run")
"""Fields that name a teacher, as a study file and as a configuration has it."""
COMPARISONS = ("difference", "plan", "test", "effect", "detectable")
"""Notes on the comparison of each row with the baseline, which factorial studies do not make."""
OF_OWN_TRIALS = (
    *("cost", "flops", "training", "compute", "kernels", "environment", "source", "one trial"),
)
"""Notes on what vitcli knows of the trials that it has trained."""
UNCERTAINTY = (
    *("score", "difference", "plan", "test", "effect", "detectable", "sampling", "incomplete"),
    "tuning",
)
"""Notes that say what varies and how certain the numbers are."""


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
        "cost": _cost(doc),
        "training": _training(doc),
        "flops": _flops(doc),
        "compute": _compute(doc, rows),
        "kernels": _kernels(doc),
        "environment": _environment(doc),
        "source": _source(doc, rows),
        "command": f"Command: {doc.command}",
        "one trial": _one_trial(doc),
    }
    hidden = (*COMPARISONS, "source") if doc.parts else OF_OWN_TRIALS if doc.origin else ()
    return {subject: text for subject, text in every.items() if text and subject not in hidden}


def _score(doc: StudyResult) -> str:
    if doc.origin:
        return (
            f"n: number of finished trials, one per seed. {capitalize(doc.headline.label)}: mean"
            f" \u00b1 standard deviation over seeds. {doc.origin.reading} File:"
            f" {doc.origin.file} (SHA-256 {doc.origin.sha256[:12]})."
        )
    images = quantity(doc.num_test, "test image") if doc.num_test else "test images"
    fold, over = "", "seeds"
    if doc.folds:
        images, fold, over = "images of its fold", "its fold, ", f"seeds ({doc.folds} folds)"
    name = capitalize(doc.headline.label)
    when = "after the last epoch (never the best epoch)"
    best = "with the weights of the best epoch on validation images (train.early_stopping)"
    base = doc.base_config.get(EARLY_STOPPING)
    stopped = [r.variant for r in doc.rows if r.changes.get(EARLY_STOPPING, base)]
    if stopped:
        some = f"after the last epoch, and of {join_words(stopped)} {best}"
        when = best if len(stopped) == len(doc.rows) else some
    return (
        f"n: number of finished trials, one per seed. {name}: on the {images} {when}, mean \u00b1"
        f" standard deviation over {over}. A seed sets {fold}initialisation, data order and"
        " augmentation."
    )


def _differences(doc: StudyResult, rows: Sequence[RowStatistics]) -> str:
    if len(doc.rows) < 2:
        return ""
    what = f"Difference: from {doc.rows[0].variant}, in {doc.headline.difference_unit}"
    equal = ""
    if doc.folds and any(row.num_pairs >= MIN_PAIRS and row.ci_low is None for row in rows):
        equal = " A row whose differences are all equal has neither an interval nor a p-value."
    if not any(row.ci_low is not None for row in rows):
        return f"{what}, paired by seed; an interval needs {MIN_PAIRS} pairs.{equal}"
    if doc.folds:
        return (
            f"{what}, paired by seed, with the 95 % corrected t interval (Nadeau and Bengio 2003):"
            " folds share training images, so the variance of the mean is s^2"
            f" (1 / n + 1 / {doc.folds - 1}); it holds at every look, and is not adjusted for the"
            f" rows.{equal}"
        )
    known = {row.with_images for row in rows if row.ci_low is not None}
    crossed = (
        "the 95 % t interval for new seeds and new test images (two-way random effects,"
        " Satterthwaite)"
    )
    seeds = "the 95 % t interval over seeds alone, because the predictions are not at hand"
    texts = [text for is_known, text in ((True, crossed), (False, seeds)) if is_known in known]
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
        f"{what}, paired by seed, with {', or '.join(texts)}; it holds at every look, and is not"
        f" adjusted for the rows.{beside}"
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
    if added := _added_later(doc):
        text += f" Added after the first result: {join_words(added)}."
    planned_rows = doc.plan.variants if doc.plan else ()
    if planned_rows and planned_rows[0] != doc.rows[0].variant:
        text += f" The planned baseline was {planned_rows[0]}."
    return text


def _left_out(doc: StudyResult, seeds: Collection[int]) -> list[int]:
    order = doc.plan.order if doc.plan else ()
    shown = [place for place, seed in enumerate(order) if seed in seeds]
    return [seed for seed in order[: max(shown, default=0)] if seed not in seeds]


def _added_later(doc: StudyResult) -> list[str]:
    planned = doc.plan.variants if doc.plan else ()
    return [row.variant for row in doc.rows if planned and row.variant not in planned]


def _tests(doc: StudyResult, rows: Sequence[RowStatistics]) -> str:
    if len(rows) < 2:
        return ""
    m = num_tests(doc)
    comparisons = quantity(m, "comparison")
    tested = [row.num_pairs for row in rows if row.p is not None]
    if doc.folds:
        return f"p: two-sided corrected t test, Holm-adjusted for {comparisons}." if tested else ""
    few = (
        f"with {comparisons}, a p-value needs a plan of at least"
        f" {quantity(seeds_needed(m), 'seed')}, and all of them"
    )
    is_few = any(row.lacks_test for row in rows)
    if not tested:
        return f"No test: {few}." if is_few else ""
    kind = "exact"
    if max(tested) > MAX_EXACT_PAIRS:
        kind = f"Monte Carlo ({RESAMPLES:,} draws, fixed seed; exact up to {MAX_EXACT_PAIRS} pairs)"
    only = f"; {few}" if is_few else ""
    return (
        "p: the larger p of two two-sided tests, the t test of the joint interval and the"
        f" {kind} sign-flip permutation test of the paired differences, Holm-adjusted for"
        f" {comparisons}{only}."
    )


def has_effects(doc: StudyResult, rows: Sequence[RowStatistics]) -> bool:
    """Return whether a table has a column of effects; crossed rows are not compared."""
    return not doc.parts and any(row.effect not in (None, "incomplete") for row in rows)


def _effects(doc: StudyResult, rows: Sequence[RowStatistics]) -> str:
    if not (doc.margins or has_effects(doc, rows)):
        return ""
    levels = sorted({f"{row.level:.2g}" for row in rows if row.level is not None}, key=float)
    parts = []
    if levels:
        parts.append(
            f"the adjusted p is at most {' to '.join(dict.fromkeys((levels[0], levels[-1])))}, the"
            " level of this look, or was small enough at an earlier look"
        )
    if any(row.lacks_test and row.pooled_low is not None for row in rows):
        parts.append(
            "the joint interval excludes 0, with the seed variance pooled over the rows (--details)"
        )
    if not parts:
        parts.append("the adjusted p, which this table has not, is small enough")
    text = f"Effect: better or worse if {', or if '.join(parts)}"
    if not doc.margins:
        return f"{text}; otherwise undecided, which is not the same as no effect."
    history = [
        f"{_margin(each.points, doc.headline.difference_unit)} declared on {each.date},"
        f" when {quantity(each.num_finished, 'trial')} had a result"
        for each in doc.margins
    ]
    return (
        f"{text}; equivalent if two one-sided t tests at 5 %, Holm-adjusted, place the difference"
        f" within the margin; otherwise undecided. Margin: {'; then '.join(history)}."
    )


def _margin(points: float | None, unit: str) -> str:
    if points is None:
        return "none"
    return f"{points:g} {unit.removesuffix('s') if points == 1 else unit}"


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
    parts = []
    if any(row.num_unfinished for row in rows):
        parts.append(
            "The numbers do not include unfinished trials; a row with one has no effect yet."
        )
    if any(row.num_diverged for row in rows):
        parts.append(
            "A diverged trial counts as a result but has no number. Means, differences and"
            " intervals use the finished trials only, which makes the row look better than it is;"
            " the row has no p-value and no effect. If the baseline diverged, no row has one."
        )
    return " ".join(parts)


def _tuning(doc: StudyResult) -> str:
    if not any(row.candidates for row in doc.rows):
        return ""
    return (
        f"Setting: chosen for each variant alone, by the best mean {doc.headline.label} over the"
        " seeds on a validation split. The test images played no part in the choice."
    )


def _cost(doc: StudyResult) -> str:
    if not doc.compares_models:
        return ""
    return (
        "MFLOP: matrix products, convolutions and attention in one forward pass; a multiply-add"
        " counts as two operations. images/s: training speed, median over the seeds; trials that"
        " ran at the same time slowed each other."
    )


def _flops(doc: StudyResult) -> str:
    text = ""
    if doc.compares_compute:
        text = (
            "TFLOP per trial: 10^12 operations of one training, forward and backward, with its"
            " pre-training and its teacher's own training."
        )
    if doc.equal_compute:
        most = doc.rows[0].flops
        shares = [
            f"{row.variant} {percent(row.flops / most, 1)}"
            for row in doc.rows[1:]
            if most and row.flops
        ]
        text += (
            f" Equal compute: each variant has the most epochs, at least 1, whose operations are no"
            f" more than those of {doc.rows[0].variant}"
            f"{f' (used: {join_words(shares)})' if shares else ''}."
        )
    return text.strip()


def _training(doc: StudyResult) -> str:
    images = quantity(doc.num_train, "training image") if doc.num_train else ""
    data_hash = f"hash {doc.data_hash[:12]}" if doc.data_hash else ""
    data = ", ".join(part for part in (images, data_hash) if part)
    limit = doc.base_config.get("train.limit_batches")
    short = "" if limit is None else f" of only {quantity(limit, 'batch')}"
    return f"Training: {_epochs(doc)}{short} on {doc.data}{f' ({data})' if data else ''}."


def _epochs(doc: StudyResult) -> str:
    """Return the baseline's epochs, and the rows that were trained for another number."""
    trained = [
        (row.variant, trial.epochs)
        for row in doc.rows
        for trial in row.trials
        if trial.state == "finished" and trial.epochs != doc.epochs
    ]
    others = "".join(f", {variant}: {epochs}" for variant, epochs in dict.fromkeys(trained))
    return quantity(doc.epochs, "epoch") + (f" (but{others[1:]})" if others else "")


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


def _compute(doc: StudyResult, rows: Sequence[RowStatistics]) -> str:
    trained = [trial for row in doc.rows for trial in row.trials if trial.state == "finished"]
    # Trials that share a pre-training state the same costs of the same run.
    before = dict.fromkeys((each.seed, *map(each.measured.get, PRETRAINED)) for each in trained)
    seconds = sum(trial.train_seconds or 0.0 for trial in trained)
    seconds += sum(each or 0.0 for _, each, _ in before)
    if not seconds:
        return ""
    on_cpu = doc.hardware and all(name.endswith((" thread", " threads")) for name in doc.hardware)
    seconds *= doc.threads if on_cpu else 1
    long = seconds >= 360 or not on_cpu
    time = f"{seconds / (3600 if long else 60):.3g}"
    what = f"core {'hours' if long else 'minutes'}" if on_cpu else "hours of one device"
    costs = [trial.measured.get("train_flops") for trial in trained]
    flops = sum(filter(None, costs))
    flops += sum(each or 0.0 for _, _, each in before)
    amount = _operations(flops)
    if teaching := sum(trial.measured.get("teacher_flops", 0.0) for trial in trained):
        own = sum(cost for _, cost in _teachers(doc))
        theirs = f"took {_operations(own)} more" if own else "is not recorded"
        amount += f" ({_operations(teaching)} by teachers; their own training {theirs})"
    facts = [quantity(len(trained), "training"), amount if all(costs) else "", f"{time} {what}"]
    tuned = any(row.candidates for row in doc.rows)
    rest = ", without the settings that were tried but not chosen" if tuned else ""
    return f"Compute: {', '.join(fact for fact in facts if fact)}{rest}."


def _teachers(doc: StudyResult) -> dict[tuple[str, float], None]:
    """Return the name of each teacher, and the operations of its own training."""
    found: dict[tuple[str, float], None] = {}
    for row in doc.rows:
        known = [fields.get(key) for fields in (row.changes, doc.base_config) for key in TEACHER]
        name = str(next(filter(None, known), ""))
        for trial in row.trials:
            if cost := trial.measured.get("teacher_train_flops"):
                found[TeacherSpec(run=name).run_for(trial.seed), cost] = None
    return found


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


def _source(doc: StudyResult, rows: Sequence[RowStatistics]) -> str:
    if doc.reference is None or not doc.reference.rows:
        return ""
    diverged = any(row.verdict in ("diverged", "baseline diverged") for row in rows)
    label = doc.headline.label
    return (
        f"Source: {doc.reference.source}. Source's drop: the source's {label} of the"
        f" variant minus the source's {label} of the baseline."
        f" {VERDICTS if doc.same_setting else DIRECTIONS}"
        + (
            " A row with a diverged trial, or a diverged baseline, has no verdict."
            if diverged
            else ""
        )
    )
