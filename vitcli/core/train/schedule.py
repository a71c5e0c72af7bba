"""Learning-rate schedules as pure functions of the step."""

import math
from collections.abc import Callable

Schedule = Callable[[float], float]


def cosine(progress: float) -> float:
    """Loshchilov and Hutter 2017, https://arxiv.org/abs/1608.03983, without restarts."""
    return 0.5 * (1 + math.cos(math.pi * progress))


def linear(progress: float) -> float:
    return 1 - progress


def constant(progress: float) -> float:
    return 1.0


SCHEDULES: dict[str, Schedule] = {"cosine": cosine, "linear": linear, "constant": constant}


def lr_factor(
    step: int, *, schedule: str, warmup_steps: int, num_steps: int, min_ratio: float = 0.0
) -> float:
    """The share of the peak learning rate that step ``step`` (from 0) is taken with.

    Linear warm-up to 1, then the schedule down to ``min_ratio``. The report's warm-up starts at
    step / warmup_steps, so its first step has rate 0 and changes nothing; here it is
    (step + 1) / warmup_steps.
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    progress = (step - warmup_steps) / max(1, num_steps - warmup_steps)
    return min_ratio + (1 - min_ratio) * SCHEDULES[schedule](min(1.0, progress))
