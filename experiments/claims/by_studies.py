"""Verdicts that the results of studies decide, or why there is none yet."""

import itertools
from collections.abc import Callable, Iterable, Sequence

from experiments.claims.item import Finding, Word
from experiments.claims.result_files import Results, not_run
from vitcli.plugins.explain import random_tensors
from vitcli.runner.study.judgement import (
    Agreement,
    deciding_interval,
    direction,
    is_withheld,
)
from vitcli.runner.study.result import StudyResult
from vitcli.runner.study.statistics import RowStatistics, compare
from vitcli.runner.study.table import missing_seeds
from vitcli.runner.text import interval, p_text, quantity, signed

MIN_SEEDS = 3
"""Number of seeds from which an interval is a verdict."""
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
    epochs = quantity(doc.epochs, "epoch")
    source = f"{doc.name}: {epochs}, n = {quantity(seeds, 'seed')}"
    setting = "" if verdict == "no verdict" else f"after {epochs}"
    return Finding(verdict, f"{found} ({source})", "; ".join(doc.hardware), setting)


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


def is_loss(row: RowStatistics) -> bool | None:
    """Return whether a row is worse than its baseline; None if that is open."""
    found = direction(row.effect)
    return None if found is None else found == "worse"


def is_gain(row: RowStatistics) -> bool | None:
    """Return whether a row is better than its baseline; None if that is open."""
    found = direction(row.effect)
    return None if found is None else found == "better"


def is_less_stable(row: RowStatistics, base: RowStatistics) -> bool | None:
    """Return whether all trainings of a row diverged and none of the baseline, or the reverse."""
    if row.num_diverged and base.num_diverged:
        return None
    if row.num_diverged:
        return None if row.n else True
    return False if base.num_diverged and not base.n else None


def difference_text(row: RowStatistics, base: RowStatistics) -> str:
    """Return a difference with what decides it: ``-8.7 [-9.5, -7.9] points, p = 0.039``.

    Without a p-value, the interval is the pooled one.
    """
    if row.num_diverged or base.num_diverged:
        parts = [f"{each.num_diverged} of {each.n + each.num_diverged}" for each in (row, base)]
        return f"diverged in {parts[0]} trainings (baseline: {parts[1]})"
    if row.ci_low is None:
        return f"has fewer than {MIN_SEEDS} common seeds"
    low, high = row.ci_low, row.ci_high
    if row.p_holm is None:
        low, high = deciding_interval(row) or (low, high)
    text = f"{signed(row.difference, 2)} {interval(low, high, 2)} points"
    if row.p_holm is None:
        is_open = row.pooled_low is None and row.lacks_test
        return f"{text}, {missing_seeds(row)}" if is_open else text
    p = p_text(row.p_holm)
    return f"{text}, p {'' if p.startswith('<') else '= '}{p}"


class Pairs:
    """Differences between pairs of rows, each judged as in a study whose baseline is the second.

    The chance of the test images is only in those from the study's own baseline.
    """

    def __init__(self, found: Rows, pairs: Sequence[tuple[str, str]]) -> None:
        self.rows: list[RowStatistics] = []
        texts = []
        for first, second in pairs:
            doc = found[0]
            if second != doc.rows[0].variant:
                # Single images are compared with the study's own baseline only.
                rows = sorted(doc.rows, key=lambda row: row.variant != second)
                alone_rows = tuple(row.replace(contrast=None) for row in rows)
                doc = doc.replace(rows=alone_rows, reference=None)
            base, *others = compare(doc)
            row = next(each for each in others if each.variant == first)
            alone = "" if row.with_images or row.ci_low is None else " over seeds alone"
            self.rows.append(row)
            texts.append(f"{first} minus {second} {difference_text(row, base)}{alone}")
        self.text = ", ".join(texts)


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
        if row.num_diverged or base.num_diverged:
            word = of_parts([is_less_stable(row, base)])
            return with_source(doc, word, text, seeds_of(rows))
        word = "in part" if is_loss(row) else "undecided"
        return with_source(doc, word, f"no training diverged; {text}", seeds_of(rows))

    return judge


def layer_norm(results: Results) -> Finding:
    """Combine the stability without LayerNorm with what the arithmetic says of batch and length."""
    loss = stabilises("ablation-cifar10-full", "no-layernorm")(results)
    errors = random_tensors.norm_errors(random_tensors.layer_norm)
    if max(errors.values()) > 0:
        return Finding("refuted", f"outputs change with the batch: {errors}")
    exact = "no output changes with batch size or padding"
    word, text = of_words(["holds", loss.verdict]), f"{exact}; stability: {loss.found}"
    return Finding(word, text, loss.hardware, loss.setting)


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
    worse = [is_loss(row) for row in pairs.rows]
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
    word = of_parts(is_gain(row) for row in pairs.rows)
    text = f"{pairs.text}; the report trains for 300 epochs"
    return with_source(doc, word, text, seeds_of(rows))


def losses_of_report(results: Results) -> Finding:
    """List the verdict of each row of the ablation table."""
    found = rows_of(results, "ablation-cifar10-full")
    if isinstance(found, Finding):
        return found
    doc, rows = found
    base, *variants = rows.values()
    judged = [row for row in variants if row.source_drop is not None]
    what = "" if doc.same_setting else "direction "
    text = "; ".join(
        f"{row.variant} {difference_text(row, base)}, {what}{row.verdict}"
        f" (stated {signed(row.source_drop, 1)})"
        for row in judged
    )
    word = of_parts(agrees(row.verdict) for row in judged)
    return with_source(doc, word, text, seeds_of(rows))


def agrees(verdict: Agreement | None) -> bool | None:
    """Return whether a row agrees with the loss that the source states; None if that is open."""
    return None if verdict in (None, "open") else verdict == "agrees"


ORDER = ("no-layernorm", "no-residual", "no-positional-encoding", "no-ffn")
"""The components by their stated loss, the largest first."""


def ranking(results: Results) -> Finding:
    """Judge each pair of neighbours in the stated order by their paired difference."""
    found = rows_of(results, "ablation-cifar10-full", *ORDER)
    if isinstance(found, Finding):
        return found
    doc, rows = found
    pairs = Pairs(found, list(itertools.pairwise(ORDER)))
    word = of_parts(is_loss(row) for row in pairs.rows)
    if any(is_gain(row) for row in pairs.rows):
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
    _, *vits = rows.values()
    word = of_parts(is_loss(row) for row in vits)
    return with_source(doc, word, vits_text(rows), seeds_of(rows))


def vits_text(rows: dict[str, RowStatistics]) -> str:
    base, *vits = rows.values()
    texts = [f"{row.variant} {difference_text(row, base)}" for row in vits]
    return f"against {base.variant}: {', '.join(texts)}"


def is_above(row: RowStatistics, value: float) -> bool | None:
    """Return whether the difference of a row lies above a value other than 0; None if open."""
    limits = deciding_interval(row)
    if is_withheld(row.effect) or limits is None or limits[0] <= value <= limits[1]:
        return None
    return limits[0] > value


def near_resnet(results: Results) -> Finding:
    """Judge whether a ViT is as close to a ResNet as in the report."""
    found = rows_of(results, CLASSIFICATION)
    if isinstance(found, Finding):
        return found
    doc, rows = found
    _, *vits = rows.values()
    word = of_parts(is_above(row, -STATED_GAP) for row in vits)
    text = f"{vits_text(rows)}; the report calls {signed(-STATED_GAP, 1)} points competitive"
    return with_source(doc, word, text, seeds_of(rows))


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
        parts.append(is_gain(row))
        seeds.append(seeds_of(rows))
        hardware |= dict.fromkeys(doc.hardware)
    text = f"clip against scratch, with equal compute instead of equal epochs: {', '.join(texts)}"
    told = f"{text} (n = {quantity(min(seeds), 'seed')})"
    return Finding(of_parts(parts), told, "; ".join(hardware), "at equal compute")
