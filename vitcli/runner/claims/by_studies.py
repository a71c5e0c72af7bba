"""Verdicts that the results of studies decide, or why there is none yet."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from vitcli.runner.claims.item import Finding, Word
from vitcli.runner.claims.result_files import Results, not_run
from vitcli.runner.study.cells import interval, p_text, signed
from vitcli.runner.study.result import StudyResult
from vitcli.runner.study.significance import ALPHA, t_interval
from vitcli.runner.study.statistics import RowStatistics, compare, scores
from vitcli.runner.text import quantity

MIN_SEEDS = 3
"""Number of seeds from which an interval is a verdict."""
Side = Literal["below", "above", "around"]
"""Where a difference lies: below 0, above it, or not decided."""
IS_LOSS: dict[Side, bool | None] = {"below": True, "above": False, "around": None}
IS_GAIN: dict[Side, bool | None] = {"below": False, "above": True, "around": None}
Rows = tuple[StudyResult, dict[str, RowStatistics]]
"""A study and its rows by variant; the first is the baseline."""


def of_parts(parts: Iterable[bool | None]) -> Word:
    """Return the verdict on a statement from those on its parts; None is an open part."""
    found = set(parts)
    if found == {True}:
        return "holds"
    if True in found:
        return "in part"
    return "refuted" if found == {False} else "undecided"


def of_words(words: Iterable[str]) -> Word:
    """Return the verdict on a statement from the verdicts on its parts."""
    known = list(words)
    if "no verdict" in known:
        return "no verdict"
    if "in part" in known:
        return "in part"
    return of_parts({"holds": True, "refuted": False}.get(word) for word in known)


def with_source(doc: StudyResult, verdict: Word, found: str, seeds: int) -> Finding:
    """Return a verdict with the study, its length, its seeds and its hardware."""
    setting = f"{doc.name}: {quantity(doc.epochs, 'epoch')}, n = {quantity(seeds, 'seed')}"
    return Finding(verdict, f"{found} ({setting})", "; ".join(doc.hardware))


def rows_of(results: Results, name: str, *variants: str) -> Rows | Finding:
    """Return a study and its rows, or why they give no verdict.

    The rows are those of ``variants``, by default all. Each needs ``MIN_SEEDS`` seeds that ended
    here and in the baseline, by finishing or by diverging.
    """
    doc = results.study(name)
    if doc is None:
        return not_run(f"{name} is not recorded")
    every = {row.variant: row for row in compare(doc)}
    base = doc.rows[0].variant
    missing = [variant for variant in variants if variant not in every]
    if missing:
        return not_run(f"{name} has no trial of {' and '.join(missing)}")
    rows = {variant: every[variant] for variant in (base, *(variants or every))}
    seeds = seeds_of(rows)
    if seeds >= MIN_SEEDS:
        return doc, rows
    if not any(row.n or row.num_diverged for row in rows.values()):
        return not_run(f"{name} has no trial that ended")
    text = ", ".join(map(score_text, rows.values()))
    told = f"{text}; fewer than {MIN_SEEDS} seeds give no interval"
    return with_source(doc, "undecided", told, seeds)


def score_text(row: RowStatistics) -> str:
    if row.score_mean is not None:
        return f"{row.variant} {row.score_mean:.2f} %"
    return f"{row.variant} diverged in {row.num_diverged} of {row.num_diverged + row.n}"


def seeds_of(rows: dict[str, RowStatistics]) -> int:
    """Return the fewest seeds that ended in a row: paired ones, or all if a training diverged."""
    base, *others = rows.values()
    counts = []
    for row in others:
        has_diverged = row.num_diverged or base.num_diverged
        ended = min(each.n + each.num_diverged for each in (row, base))
        counts.append(ended if has_diverged else row.num_pairs)
    return min(counts, default=0)


def diverged_side(row: RowStatistics, other: RowStatistics) -> Side | None:
    """Return the side of a row where trainings diverged: clear if all did so in one row only.

    Otherwise the scores that are left say nothing. None: no training diverged.
    """
    if not row.num_diverged and not other.num_diverged:
        return None
    if not other.num_diverged and not row.n:
        return "below"
    return "above" if not row.num_diverged and not other.n else "around"


def side(row: RowStatistics, base: RowStatistics) -> Side:
    """Return where the difference of a row lies.

    As in the table of its study, the p-value that is adjusted for all rows decides; with too few
    seeds for it, the joint interval does.
    """
    if found := diverged_side(row, base):
        return found
    if row.difference is None or row.joint_low is None or row.joint_high is None:
        return "around"
    if row.p_holm is not None:
        is_clear = row.p_holm <= ALPHA
        return "around" if not is_clear else "above" if row.difference > 0 else "below"
    return side_of(row.joint_low, row.joint_high)


def side_of(low: float, high: float) -> Side:
    return "above" if low > 0 else "below" if high < 0 else "around"


def difference_text(row: RowStatistics, base: RowStatistics) -> str:
    """Return a difference with what decides its side: ``-8.7 [-9.5, -7.9] points, p = 0.039``.

    Without a p-value, the interval is the joint one.
    """
    if diverged_side(row, base):
        parts = [f"{each.num_diverged} of {each.n + each.num_diverged}" for each in (row, base)]
        return f"diverged in {parts[0]} trainings (baseline: {parts[1]})"
    if row.p_holm is None:
        return f"{signed(row.difference, 2)} {interval(row.joint_low, row.joint_high, 2)} points"
    p = p_text(row.p_holm)
    sign = "" if p.startswith("<") else "= "
    plain = interval(row.ci_low, row.ci_high, 2)
    return f"{signed(row.difference, 2)} {plain} points, p {sign}{p}"


class Pairs:
    """Differences between pairs of rows, by the seeds of both and adjusted for these pairs.

    The chance of the test images is not in them. For the difference from the baseline, the study's
    own interval is better.
    """

    def __init__(self, found: Rows, pairs: Sequence[tuple[str, str]]) -> None:
        doc, rows = found
        numbers = {row.variant: scores(row, doc.headline) for row in doc.rows}
        self.sides: list[Side] = []
        texts = []
        for first, second in pairs:
            ours, theirs = numbers[first], numbers[second]
            differences = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
            where = diverged_side(rows[first], rows[second])
            if where:
                shown = "diverged"
            elif len(differences) < MIN_SEEDS:
                where, shown = "around", f"has fewer than {MIN_SEEDS} common seeds"
            else:
                low, high = t_interval(differences, ALPHA / len(pairs))
                mean = sum(differences) / len(differences)
                where, shown = side_of(low, high), f"{signed(mean, 2)} {interval(low, high, 2)}"
            self.sides.append(where)
            texts.append(f"{first} minus {second} {shown}")
        self.text = f"in points, over seeds alone: {', '.join(texts)}"


def stabilises(study: str, variant: str) -> Callable[[Results], Finding]:
    """Return a judge: the claim says that trainings of a variant are less stable.

    Trainings that diverge decide. If none does, a lower accuracy shows that training is worse, not
    that it is unstable; a higher one shows nothing about stability.
    """

    def judge(results: Results) -> Finding:
        found = rows_of(results, study, variant)
        if isinstance(found, Finding):
            return found
        doc, rows = found
        base, row = rows.values()
        text = f"{variant} {difference_text(row, base)}"
        if diverged := diverged_side(row, base):
            return with_source(doc, of_parts([IS_LOSS[diverged]]), text, seeds_of(rows))
        word: Word = "in part" if side(row, base) == "below" else "undecided"
        return with_source(doc, word, f"no training diverged; {text}", seeds_of(rows))

    return judge


def layer_norm(results: Results) -> Finding:
    """Combine the stability without LayerNorm with what the arithmetic says of batch and length."""
    from vitcli.runner.claims import computed

    loss = stabilises("ablation-cifar10-tiny", "no-layernorm")(results)
    errors = computed.norm_errors(computed.layer_norm)
    if max(errors.values()) > 0:
        return Finding("refuted", f"outputs change with the batch: {errors}")
    exact = "no output changes with batch size or padding"
    return Finding(
        of_words(["holds", loss.verdict]), f"{exact}; stability: {loss.found}", loss.hardware
    )


SIZES = ("patch-2", "patch-4", "patch-8", "patch-16")


def patch_size(results: Results) -> Finding:
    """Judge both halves between neighbouring sizes: larger patches cost less, and lose accuracy."""
    found = rows_of(results, "ablation-patch-size", *(size for size in SIZES if size != "patch-4"))
    if isinstance(found, Finding):
        return found
    doc, rows = found
    pairs = Pairs(found, [(large, small) for small, large in itertools.pairwise(SIZES)])
    cost = {row.variant: row.forward_flops for row in doc.rows}
    flops = [cost[size] for size in SIZES]
    cheaper = [bool(a > b) if a and b else None for a, b in itertools.pairwise(flops)]
    worse = [IS_LOSS[where] for where in pairs.sides]
    operations = ", ".join(f"{1e-6 * count:.1f}" if count else "?" for count in flops)
    text = f"{pairs.text}; MFLOP of {', '.join(SIZES)}: {operations}"
    return with_source(doc, of_parts([*cheaper, *worse]), text, seeds_of(rows))


def heavy_augmentation(results: Results) -> Finding:
    """Compare heavy augmentation with none by the paired scores of the seeds."""
    found = rows_of(results, "ablation-augmentation", "heavy", "none")
    if isinstance(found, Finding):
        return found
    doc, rows = found
    pairs = Pairs(found, [("heavy", "none")])
    word = of_parts(IS_GAIN[where] for where in pairs.sides)
    text = f"{pairs.text}; the report trains for 300 epochs"
    return with_source(doc, word, text, seeds_of(rows))


def losses_of_report(results: Results) -> Finding:
    """List the verdict of each row of the ablation table."""
    found = rows_of(results, "ablation-cifar10-tiny")
    if isinstance(found, Finding):
        return found
    doc, rows = found
    base, *variants = rows.values()
    judged = [row for row in variants if row.source_drop is not None]
    told = {"same": "same direction", "opposite": "opposite direction"}
    text = "; ".join(
        f"{row.variant} {difference_text(row, base)}, {told.get(str(row.verdict), row.verdict)}"
        f" (stated {signed(row.source_drop, 1)})"
        for row in judged
    )
    sides = [(diverged_side(row, base), row.verdict) for row in judged]
    word = of_parts(IS_LOSS[where] if where else agrees(verdict) for where, verdict in sides)
    return with_source(doc, word, text, seeds_of(rows))


def agrees(verdict: str | None) -> bool | None:
    """Return whether a row agrees with the loss that the source states; None if that is open."""
    if verdict in ("replicates", "same"):
        return True
    is_open = verdict in (None, "undecided", "too wide to say", "incomplete")
    return None if is_open else False


ORDER = ("no-layernorm", "no-residual", "no-positional-encoding", "no-ffn")
"""The components by their stated loss, the largest first."""


def ranking(results: Results) -> Finding:
    """Judge each pair of neighbours in the stated order by their paired difference."""
    found = rows_of(results, "ablation-cifar10-tiny", *ORDER)
    if isinstance(found, Finding):
        return found
    doc, rows = found
    pairs = Pairs(found, list(itertools.pairwise(ORDER)))
    word = of_parts(IS_LOSS[where] for where in pairs.sides)
    if "above" in pairs.sides:
        word = "refuted"  # one wrong pair is another order
    return with_source(doc, word, pairs.text, seeds_of(rows))


CLASSIFICATION = "classification-cifar10-short"
STATED_GAP = 2.4
"""Points by which the report's ViT-Small is behind its ResNet-18, which it calls competitive."""


def against_resnet(results: Results) -> Finding:
    """Judge "behind a ResNet with limited data" at equal epochs."""
    found = rows_of(results, CLASSIFICATION)
    if isinstance(found, Finding):
        return found
    doc, rows = found
    base, *vits = rows.values()
    word = of_parts(IS_LOSS[side(row, base)] for row in vits)
    return with_source(doc, word, vits_text(rows), seeds_of(rows))


def vits_text(rows: dict[str, RowStatistics]) -> str:
    base, *vits = rows.values()
    texts = [f"{row.variant} {difference_text(row, base)}" for row in vits]
    return f"against {base.variant}: {', '.join(texts)}"


def near_resnet(results: Results) -> Finding:
    """Judge whether a ViT is as close to a ResNet as in the report, by the joint interval."""
    found = rows_of(results, CLASSIFICATION)
    if isinstance(found, Finding):
        return found
    doc, rows = found
    base, *vits = rows.values()
    word = of_parts(IS_GAIN[near(row, base)] for row in vits)
    text = f"{vits_text(rows)}; the report calls {signed(-STATED_GAP, 1)} points competitive"
    return with_source(doc, word, text, seeds_of(rows))


def near(row: RowStatistics, base: RowStatistics) -> Side:
    """Return where the difference of a row lies, from the gap that the report states."""
    if row.joint_low is None or row.joint_high is None or diverged_side(row, base):
        return side(row, base)
    return side_of(row.joint_low + STATED_GAP, row.joint_high + STATED_GAP)


def fewer_labels(results: Results) -> Finding:
    """Judge CLIP-style training against scratch with 100, 1,000 and all labels."""
    studies = ("study-pretraining-100", "study-pretraining", "study-pretraining-all")
    texts, parts, seeds, hardware = [], [], [], dict[str, None]()
    for name in studies:
        found = rows_of(results, name, "clip")
        if isinstance(found, Finding):
            return found
        doc, rows = found
        base, row = rows.values()
        texts.append(f"{name} {difference_text(row, base)}")
        parts.append(IS_GAIN[side(row, base)])
        seeds.append(seeds_of(rows))
        hardware |= dict.fromkeys(doc.hardware)
    text = f"clip against scratch, with equal compute instead of equal epochs: {', '.join(texts)}"
    return Finding(
        of_parts(parts), f"{text} (n = {quantity(min(seeds), 'seed')})", "; ".join(hardware)
    )
