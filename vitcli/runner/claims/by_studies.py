"""Verdicts that the results of studies decide, or why there is none yet."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from vitcli.runner.claims.item import Finding, Word
from vitcli.runner.claims.result_files import Results, not_run
from vitcli.runner.study.cells import interval, p_text, signed
from vitcli.runner.study.result import StudyResult
from vitcli.runner.study.significance import ALPHA, t_interval
from vitcli.runner.study.statistics import RowStatistics, compare, num_tests, scores
from vitcli.runner.text import quantity

MIN_SEEDS = 3
"""Number of seeds from which an interval is a verdict."""


def too_few(study: str) -> str:
    return f"some variants of {study} have fewer than {MIN_SEEDS} finished seeds"


def with_source(doc: StudyResult, verdict: Word, found: str) -> Finding:
    """Return a verdict with the study, its length, its fewest seeds and its hardware."""
    count = min(row.n for row in compare(doc))
    setting = f"{doc.name}: {quantity(doc.epochs, 'epoch')}, n = {quantity(count, 'seed')}"
    return Finding(verdict, f"{found} ({setting})", "; ".join(doc.hardware))


def rows_of(results: Results, name: str) -> tuple[StudyResult, dict[str, RowStatistics]] | None:
    """Return a study and its rows by variant; None without ``MIN_SEEDS`` finished pairs."""
    doc = results.study(name)
    if doc is None:
        return None
    rows = {row.variant: row for row in compare(doc)}
    pairs = [row.num_pairs for row in list(rows.values())[1:]]
    return (doc, rows) if min(pairs, default=0) >= MIN_SEEDS else None


def difference_text(row: RowStatistics) -> str:
    """Return a difference with what decides its side: ``-8.7 [-9.5, -7.9] points, p = 0.039``.

    Without a p-value, the interval is the joint one.
    """
    if row.p_holm is None:
        return f"{signed(row.difference, 2)} {interval(row.joint_low, row.joint_high, 2)} points"
    p = p_text(row.p_holm)
    sign = "" if p.startswith("<") else "= "
    plain = interval(row.ci_low, row.ci_high, 2)
    return f"{signed(row.difference, 2)} {plain} points, p {sign}{p}"


def side(row: RowStatistics) -> str:
    """Return where a difference lies: ``below``, ``above`` or ``around`` 0.

    As in the table of its study, the p-value that is adjusted for all rows decides; with too few
    seeds for it, the joint interval does.
    """
    if row.difference is None or row.joint_low is None or row.joint_high is None:
        return "around"
    if row.p_holm is not None:
        is_clear = row.p_holm <= ALPHA
        return "around" if not is_clear else "above" if row.difference > 0 else "below"
    return "above" if row.joint_low > 0 else "below" if row.joint_high < 0 else "around"


def expects_loss(study: str, variant: str) -> Callable[[Results], Finding]:
    """Return a judge: the claim says that a variant is less accurate than the baseline."""

    def judge(results: Results) -> Finding:
        found = rows_of(results, study)
        if found is None or variant not in found[1]:
            return not_run(too_few(study))
        doc, row = found[0], found[1][variant]
        words: dict[str, Word] = {"below": "holds", "above": "refuted", "around": "undecided"}
        return with_source(doc, words[side(row)], f"{variant} {difference_text(row)}")

    return judge


def layer_norm(results: Results) -> Finding:
    """Combine the measured loss with what the arithmetic says of batch and length."""
    from vitcli.runner.claims import computed

    loss = expects_loss("ablation-cifar10-tiny", "no-layernorm")(results)
    errors = computed.norm_errors(computed.layer_norm)
    exact = "no output changes with batch size or padding"
    if max(errors.values()) > 0:
        return Finding("refuted", f"outputs change with the batch: {errors}")
    word: Word = "holds" if loss.verdict == "holds" else "in part"
    return Finding(word, f"{exact}; stability: {loss.found}", loss.hardware)


PATCHES = {"patch-2": "above", "patch-8": "below", "patch-16": "below"}
"""Row -> where its difference from ``patch-4`` lies if larger patches are less accurate."""


def patch_size(results: Results) -> Finding:
    """Judge both halves: larger patches cost less, and they are less accurate."""
    found = rows_of(results, "ablation-patch-size")
    if found is None:
        return not_run(too_few("ablation-patch-size"))
    doc, rows = found
    text = ", ".join(f"{name} {difference_text(rows[name])}" for name in PATCHES)
    agree = {name: side(rows[name]) == where for name, where in PATCHES.items()}
    differ = {name: side(rows[name]) not in (where, "around") for name, where in PATCHES.items()}
    cost = {row.variant: row.forward_flops or 0 for row in doc.rows}
    sizes = ("patch-2", "patch-4", "patch-8", "patch-16")
    is_cheaper = all(cost[small] > cost[large] > 0 for small, large in itertools.pairwise(sizes))
    word: Word = "in part"
    if not is_cheaper or all(differ.values()):
        word = "refuted"
    elif all(agree.values()):
        word = "holds"
    operations = ", ".join(f"{name} {1e-6 * cost[name]:.1f}" for name in sizes)
    return with_source(doc, word, f"against patch-4: {text}; MFLOP: {operations}")


def heavy_augmentation(results: Results) -> Finding:
    """Compare heavy augmentation with none by the paired scores of the seeds."""
    doc = results.study("ablation-augmentation")
    pair = paired(doc, "heavy", "none") if doc else []
    if doc is None or len(pair) < MIN_SEEDS:
        return not_run(too_few("ablation-augmentation"))
    low, high = t_interval(pair, ALPHA / num_tests(doc))
    word: Word = "holds" if low > 0 else "refuted" if high < 0 else "undecided"
    text = f"heavy minus none {sum(pair) / len(pair):+.2f} [{low:.2f}, {high:.2f}] points"
    return with_source(doc, word, f"{text}, over seeds alone; 5 epochs cannot speak for 300")


def paired(doc: StudyResult, first: str, second: str) -> list[float]:
    """Return the differences first - second of the seeds that finished in both rows."""
    rows = {row.variant: scores(row, doc.headline) for row in doc.rows}
    if first not in rows or second not in rows:
        return []
    return [rows[first][seed] - rows[second][seed] for seed in rows[first] if seed in rows[second]]


def losses_of_report(results: Results) -> Finding:
    """List the verdict of each row of the ablation table."""
    found = rows_of(results, "ablation-cifar10-tiny")
    if found is None:
        return not_run(too_few("ablation-cifar10-tiny"))
    doc, rows = found
    judged = [row for row in rows.values() if row.source_drop is not None and row.num_pairs]
    text = "; ".join(
        f"{row.variant} {difference_text(row)}, {row.verdict} (stated {row.source_drop:.1f})"
        for row in judged
    )
    verdicts = {row.verdict for row in judged}
    return with_source(doc, of_rows(verdicts), text)


def of_rows(verdicts: set[Any]) -> Word:
    """Return one word for the verdicts of the rows of a table."""
    agreeing = {"replicates", "same"}
    if verdicts <= agreeing:
        return "holds"
    if verdicts & agreeing:
        return "in part"
    if verdicts <= {"undecided", "too wide to say", "incomplete"}:
        return "undecided"
    return "refuted"


ORDER = ("no-layernorm", "no-residual", "no-positional-encoding", "no-ffn", "single-head")
"""The components by their stated loss, the largest first."""


def ranking(results: Results) -> Finding:
    """Judge each pair of neighbours in the stated order by their paired difference."""
    doc = results.study("ablation-cifar10-tiny")
    if doc is None or min(len(paired(doc, a, b)) for a, b in neighbours()) < MIN_SEEDS:
        return not_run(too_few("ablation-cifar10-tiny"))
    texts, wrong, right = [], 0, 0
    for first, second in neighbours():
        low, high = t_interval(paired(doc, first, second), ALPHA / len(neighbours()))
        texts.append(f"{first} - {second} [{low:+.2f}, {high:+.2f}]")
        wrong, right = wrong + (low > 0), right + (high < 0)
    word: Word = "refuted" if wrong else "holds" if right == len(texts) else "undecided"
    return with_source(doc, word, f"differences in accuracy, over seeds alone: {', '.join(texts)}")


def neighbours() -> list[tuple[str, str]]:
    return list(itertools.pairwise(ORDER))


def stated_accuracy(results: Results) -> Finding:
    """Compare the accuracy of the training notes with ours; one seed gives no interval."""
    doc = results.study("cifar10-tiny")
    if doc is None:
        return not_run("no result of cifar10-tiny is recorded")
    values = list(scores(doc.rows[0], doc.headline).values())
    text = ", ".join(f"{value:.2f} %" for value in values)
    if len(values) < MIN_SEEDS:
        text = f"{text} against 71.51 %; fewer than {MIN_SEEDS} seeds give no interval"
        return with_source(doc, "undecided", text)
    low, high = t_interval(values)
    word: Word = "holds" if low <= 71.51 <= high else "refuted"
    return with_source(doc, word, f"{text}, [{low:.2f}, {high:.2f}] against 71.51 %")


def stated_minutes(results: Results) -> Finding:
    doc = results.study("cifar10-tiny")
    if doc is None:
        return not_run("no result of cifar10-tiny is recorded")
    minutes = (doc.rows[0].trials[0].train_seconds or 0) / 60
    text = f"the notes name no machine; here 50 epochs at 0.001 took {minutes:.0f} min"
    return with_source(doc, "no verdict", text)


def against_resnet(results: Results) -> Finding:
    """Judge "behind a ResNet with limited data" at equal epochs."""
    found = rows_of(results, "classification-cifar10-short")
    if found is None:
        return few_seeds(results.study("classification-cifar10-short"))
    doc, rows = found
    vits = [row for name, row in rows.items() if name.startswith("vit")]
    text = ", ".join(f"{row.variant} {difference_text(row)}" for row in vits)
    sides = {side(row) for row in vits}
    word: Word = "holds" if sides == {"below"} else "refuted" if "above" in sides else "undecided"
    return with_source(doc, word, f"against resnet-18: {text}")


def few_seeds(doc: StudyResult | None) -> Finding:
    """Return why the classification table gives no verdict yet, with its accuracies so far."""
    if doc is None:
        return not_run("classification-cifar10-short is not recorded")
    scored = [row for row in compare(doc) if row.score_mean is not None]
    text = ", ".join(f"{row.variant} {row.score_mean:.2f} %" for row in scored)
    return with_source(doc, "undecided", f"{text}; fewer than {MIN_SEEDS} seeds give no interval")


def competitive(results: Results) -> Finding:
    behind = against_resnet(results)
    words: dict[Word, Word] = {"holds": "refuted", "refuted": "holds"}
    return replace(behind, verdict=words.get(behind.verdict, behind.verdict))


def fewer_labels(results: Results) -> Finding:
    """Judge CLIP-style training against scratch with 100 and 1,000 labels; name all labels too."""
    studies = ("study-pretraining-100", "study-pretraining", "study-pretraining-all")
    pairs = {name: rows_of(results, name) for name in studies}
    found = [each for each in pairs.values() if each]
    text = ", ".join(f"{doc.name} {difference_text(rows['clip'])}" for doc, rows in found)
    if missing := [name for name, each in pairs.items() if not each]:
        so_far = f"; so far {text}" if found else ""
        return not_run(f"{too_few(' and '.join(missing))}{so_far}")
    sides = {side(rows["clip"]) for _, rows in found[:2]}
    word: Word = "undecided"
    if "above" in sides:
        word = "holds" if sides == {"above"} else "in part"
    elif "below" in sides:
        word = "refuted"
    return with_source(found[1][0], word, f"clip against scratch: {text}")
