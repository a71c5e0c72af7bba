"""The verdict on two variants of a document whose trials any program has trained."""

from dataclasses import dataclass

from vitcli.plugins.decide import rule
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.study.result import Contrast, StudyResult, VariantResult
from vitcli.runner.study.statistics import scores
from vitcli.runner.text import printable, quantity


@dataclass(frozen=True, kw_only=True)
class Judged:
    change: str
    decision: rule.Decision
    notes: list[str]
    next_pair: str


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
        state = "without a score of both"
        notes.append(f"note: seed {gap} is {state}, and later seeds do not count before it")
    images = image_variance(row.contrast, len(complete))
    if images is None:
        notes.append(
            "note: the verdict is about these test images; predictions would tell of new ones"
        )
    return Judged(
        change=row.variant,
        decision=rule.decide(differences, most=most, margin=margin, image_variance=images),
        notes=notes,
        next_pair=f"seed {gap}" if gap is not None else f"a seed after {seeds[-1]}",
    )


def _row(others: list[VariantResult], change: str | None) -> VariantResult:
    known = ", ".join(printable(row.variant) for row in others)
    if change is None and len(others) == 1:
        return others[0]
    found = [row for row in others if row.variant == change]
    if not found:
        what = "name the variant to judge" if change is None else f"no variant {printable(change)}"
        raise ConfigError(f"{what}: {known or 'the file has only one'}")
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
