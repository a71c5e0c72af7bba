"""The verdict on two variants of a CSV file whose trials any program has trained."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vitcli.core.metric import Metric
from vitcli.plugins.decide import rule
from vitcli.plugins.table.results_file import Choices, read_text
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.report.tables import csv_text
from vitcli.runner.study.result import Contrast, VariantResult, sort_seeds
from vitcli.runner.study.statistics import scores
from vitcli.runner.text import Listener, printable

ABOUT_IMAGES = "the verdict is about the images of these scores; predictions would tell of new ones"


def judge(
    path: Path,
    change: str | None,
    max_seeds: int | None,
    reading: Mapping[str, Any],
    command: str,
    on_message: Listener,
) -> tuple[str, str, rule.Decision, Metric, list[str]]:
    """Return the names of change and best, the verdict, the score's metric, and notes.

    ``reading`` are fields of the ``Choices`` of ``vitcli table``.
    """
    choices = Choices.of(**reading)
    document, unused, names = read_text(
        csv_text(path), str(path), choices, command, in_file_order=True
    )
    if unused:
        on_message(f"not used: {', '.join(unused)}")
    if document.origin:
        on_message(document.origin.reading)
    best, row = document.rows[0], _row(document.rows[1:], change)
    if document.folds:
        raise ConfigError(
            "decide takes seeds, and the pairs of this file are folds; take 'vitcli table'"
        )
    headline = document.headline
    ours, theirs = scores(row, headline), scores(best, headline)
    seeds = sort_seeds({trial.seed for trial in (*best.trials, *row.trials)}, document.plan)
    complete = [*itertools.takewhile(lambda seed: seed in ours and seed in theirs, seeds)]
    gap = seeds[len(complete)] if len(complete) < len(seeds) else None
    sign = 1 if headline.higher_is_better else -1
    images = image_variance(row.contrast, len(complete))
    decision = rule.decide(
        [sign * (ours[seed] - theirs[seed]) for seed in complete],
        most=max_seeds or rule.MOST,
        margin=choices.margin,
        image_variance=images,
    )
    notes = [] if images else [ABOUT_IMAGES]
    if not decision.is_final:
        needed = f"a seed after {names[seeds[-1]]}" if gap is None else f"seed {names[gap]}"
        diverged = [
            side.variant
            for side in (best, row)
            for trial in side.trials
            if (trial.seed, trial.state) == (gap, "diverged")
        ]
        if best.variant in diverged:
            raise InputError(
                f"{best.variant} diverged with {needed}, so a comparison means nothing"
            )
        if diverged:
            decision = dataclasses.replace(decision, verdict="diverged")
        else:
            notes.append(f"one more pair is needed, in the order of the seeds: {needed}")
    return row.variant, best.variant, decision, headline, notes


def _row(others: Sequence[VariantResult], change: str | None) -> VariantResult:
    if not others:
        raise ConfigError("the file has one variant, and a comparison needs two")
    chosen = [row for row in others if change in (None, row.variant)]
    if len(chosen) != 1:
        problem = "name the variant to judge" if change is None else f"no variant {change!r}"
        raise ConfigError(printable(f"{problem}: {', '.join(row.variant for row in others)}"))
    return chosen[0]


def image_variance(contrast: Contrast | None, pairs: int) -> dict[int, float] | None:
    """Return the variance of the mean over new test images, for each look; None if not known."""
    found = {}
    for count in range(rule.FIRST, pairs + 1):
        crossed = contrast.at(count) if contrast else None
        if crossed is None:
            return None
        extra = crossed.ms_images - crossed.ms_residual
        found[count] = max(0.0, extra) / (crossed.num_seeds * crossed.num_images)
    return found or None
