"""The verdict on two variants of a document whose trials any program has trained."""

import dataclasses
from dataclasses import dataclass

from vitcli.plugins.decide import rule
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.study.result import Contrast, StudyResult, VariantResult
from vitcli.runner.study.statistics import scores
from vitcli.runner.text import did_you_mean, printable, quantity


@dataclass(frozen=True, kw_only=True)
class Judged:
    change: str
    decision: rule.Decision
    notes: list[str]


def judge(document: StudyResult, change: str | None, *, most: int, margin: float | None) -> Judged:
    best, *others = document.rows
    row = _row(others, change)
    if document.folds:
        raise ConfigError(
            "decide takes seeds, and the pairs of this file are folds; take 'vitcli table'"
        )
    headline = document.headline
    ours, theirs = scores(row, headline), scores(best, headline)
    seeds = sorted({trial.seed for each in (best, row) for trial in each.trials})
    paired = [seed for seed in seeds if seed in ours and seed in theirs]
    gap = next((seed for seed in seeds if seed not in paired), None)
    complete = [seed for seed in paired if gap is None or seed < gap]
    if len(complete) > most:
        raise InputError(
            f"{quantity(len(complete), 'pair')} of seeds, but the comparison ends at {most}; more"
            " pairs than that need a new comparison on new seeds"
        )
    sign = 1 if headline.higher_is_better else -1
    differences = [sign * (ours[seed] - theirs[seed]) for seed in complete]
    notes = []
    if gap is not None:
        notes.append(f"seed {gap} is without a score of both; later seeds do not count before it")
    images = image_variance(row.contrast, len(complete))
    if images is None:
        notes.append(
            "the verdict is about the images of these scores; predictions would tell of new ones"
        )
    decision = rule.decide(differences, most=most, margin=margin, image_variance=images)
    if not decision.is_final and gap is not None:
        if _has_diverged(best, gap):
            raise InputError(
                f"{best.variant} diverged with seed {gap}; a comparison with it means nothing"
            )
        if _has_diverged(row, gap):
            decision = dataclasses.replace(decision, verdict="diverged")
    if not decision.is_final:
        notes.append(
            f"one more pair is needed: {'seed' if gap is not None else 'a seed after'}"
            f" {seeds[-1] if gap is None else gap}"
        )
    return Judged(change=row.variant, decision=decision, notes=notes)


def _has_diverged(row: VariantResult, seed: int) -> bool:
    return any((trial.seed, trial.state) == (seed, "diverged") for trial in row.trials)


def _row(others: list[VariantResult], change: str | None) -> VariantResult:
    names = [printable(row.variant) for row in others]
    if not others:
        raise ConfigError("the file has one variant, and a comparison needs two")
    if change is None and len(others) == 1:
        return others[0]
    found = [row for row in others if row.variant == change]
    if not found:
        what = "name the variant to judge"
        if change is not None:
            what = f"no variant {printable(change)} to compare with the best"
        raise ConfigError(f"{what}{did_you_mean(change or '', names)}: {', '.join(names)}")
    return found[0]


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
