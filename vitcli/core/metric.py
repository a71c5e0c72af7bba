"""The table of metrics: what a number measures, its unit, its direction and its format.

A row that is added to ``METRICS`` with ``of_logits`` is measured by every classification, stored
in its result and written by every command.
"""

import re
from dataclasses import dataclass
from functools import partial

from vitcli.plugin import Registry, Target


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A number that an evaluation measures, and its format in texts and tables."""

    name: str
    """Name in files, after the prefix ``test_`` or ``val_``."""
    label: str
    """Name in texts and tables."""
    scale: float = 1.0
    """Factor from the stored number to the displayed number; 100 for percent."""
    unit: str = ""
    digits: int = 4
    """Number of decimal places."""
    short: str = ""
    """Short label for narrow places; ``label`` is used if empty."""
    short_digits: int | None = None
    """Number of decimal places in the line of an epoch; ``digits`` if None."""
    higher_is_better: bool = True
    has_prefix: bool = True
    """Whether result.json stores the number with the prefix ``test_``."""
    of_logits: Target | None = None
    """A function of logits (N, K) in fp64 and labels (N,) on the CPU. It returns the number, or
    None if it is not defined for so many classes."""
    condense: Target | None = None
    """A numpy function that reduces the stored outputs to a size that can be committed to git."""
    source: str = ""
    """File or package whose own code added the metric; empty for a built-in metric."""
    per_image: Target | None = None
    """A numpy function that returns, from stored or condensed outputs, the number of each image,
    whose mean is the metric, and the labels or None."""

    @property
    def title(self) -> str:
        """Return the label with the unit, such as ``accuracy, %``."""
        has_unit = not self.unit or self.unit in self.label
        return self.label if has_unit else f"{self.label}, {self.unit}"

    @property
    def difference_unit(self) -> str:
        """Return the unit of a difference between two values; for percent, percentage points."""
        return "percentage points" if self.unit == "%" else self.unit or f"units of {self.label}"

    @property
    def counts_right(self) -> bool:
        """Return whether it is the share of images that are right, in percent: a binomial share."""
        return self.unit == "%" and self.per_image == ACCURACY.per_image

    def text(self, value: float, digits: int | None = None) -> str:
        """Return the value as displayed text, such as ``71.51 %``."""
        number = f"{self.scale * value:.{self.digits if digits is None else digits}f}"
        return f"{number} {self.unit}" if self.unit else number

    def is_possible(self, value: float) -> bool:
        """Return whether a run can measure this value: a share lies between 0 and 1.

        An own metric may be in percent and no share, such as a gain.
        """
        return self.unit != "%" or bool(self.source) or 0 <= value <= 1

    def is_better(self, value: float, other: float) -> bool:
        return value > other if self.higher_is_better else value < other


MAX_NUMBER = 1e300
"""All numbers in a run's files are smaller."""
percent = partial(Metric, scale=100, unit="%", digits=2, short_digits=1)
error = partial(Metric, short_digits=3, higher_is_better=False)
STORED = "vitcli.core.metrics.stored"
accuracy_of_outputs = partial(percent, condense=f"{STORED}:condense", per_image=f"{STORED}:correct")
"""An accuracy whose outputs are ``logits`` (N, K) and ``labels`` (N,)."""

OF_LOGITS = "vitcli.core.metrics.classification"
ACCURACY = accuracy_of_outputs(
    name="accuracy", label="accuracy", short="acc", of_logits=f"{OF_LOGITS}:accuracy"
)

_ROWS = (
    ACCURACY,
    error(name="loss", label="loss", of_logits=f"{OF_LOGITS}:cross_entropy"),
    percent(name="top5_accuracy", label="top-5 accuracy", of_logits=f"{OF_LOGITS}:top5_accuracy"),
    percent(
        name="calibration_error",
        label="calibration error",
        higher_is_better=False,
        has_prefix=False,
        of_logits=f"{OF_LOGITS}:calibration_error",
    ),
    percent(
        name="balanced_accuracy",
        label="balanced accuracy",
        of_logits=f"{OF_LOGITS}:balanced_accuracy",
    ),
    percent(name="macro_f1", label="macro-F1", of_logits=f"{OF_LOGITS}:macro_f1"),
)
METRICS = Registry[Metric]("metric")
METRICS |= {metric.name: metric for metric in _ROWS}
"""The table of what every classification measures, by name."""
NUMBERS = Registry[Metric]("number")
"""What only some objectives measure, by name. A number without a row here or there has no unit."""


def metric_of(name: str) -> Metric | None:
    """Return the metric of a number in a run's files, such as ``best_val_accuracy``."""
    names = (bare_name(name), name)
    found = (table.get(each) for each in names for table in (METRICS, NUMBERS))
    return next(filter(None, found), None)


def own_metrics() -> list[Metric]:
    return [metric for metric in METRICS.values() if metric.source]


def bare_name(name: str) -> str:
    """Return the name of a number in a run's files without that of its split."""
    return re.sub(r"^(best_)?(train|val|test)_", "", name)
