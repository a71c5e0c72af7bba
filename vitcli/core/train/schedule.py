"""Learning-rate schedules as pure functions of the step."""

import math

from vitcli.core.spec import SCHEDULES
from vitcli.core.spec.own import OwnPartError
from vitcli.core.spec.rows import make, options_of


def cosine(progress: float) -> float:
    """Return the cosine factor of Loshchilov and Hutter 2017, https://arxiv.org/abs/1608.03983.

    Restarts are not implemented.
    """
    return 0.5 * (1 + math.cos(math.pi * progress))


def linear(progress: float) -> float:
    return 1 - progress


def constant(progress: float) -> float:
    return 1.0


def lr_factor(
    step: int, *, schedule: str, warmup_steps: int, num_steps: int, min_ratio: float = 0.0
) -> float:
    """Return the learning rate of a step, counted from 0, as a share of the peak rate.

    The warm-up is linear up to 1; the schedule then falls to ``min_ratio``. The warm-up of the
    report "Attention Mechanisms and Transformers for Visual Recognition" is step / warmup_steps,
    so its first step has rate 0 and changes nothing. This warm-up is (step + 1) / warmup_steps.
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    progress = (step - warmup_steps) / max(1, num_steps - warmup_steps)
    row = SCHEDULES[schedule]
    share = make(row, min(1.0, progress), **options_of(schedule))
    try:
        return min_ratio + (1 - min_ratio) * float(share)  # it may be a tensor
    except (TypeError, ValueError) as error:
        text = f"schedule {schedule} returned {type(share).__name__}, not one number"
        raise OwnPartError(row.build, text) from error
