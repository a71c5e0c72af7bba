"""The table of metrics: what a number measures, its unit, its direction and its format.

A row that is added to ``METRICS`` with ``of_logits`` is measured by every classification, stored
in its result and written by every command.
"""

import re
from dataclasses import dataclass
from functools import partial

from vitcli.core.spec.rows import Target


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
        return f"{self.label}, {self.unit}" if self.unit else self.label

    @property
    def difference_unit(self) -> str:
        """Return the unit of a difference between two values; for percent, percentage points."""
        return "percentage points" if self.unit == "%" else self.unit or f"units of {self.label}"

    def text(self, value: float, digits: int | None = None) -> str:
        """Return the value as displayed text, such as ``71.51 %``."""
        number = f"{self.scale * value:.{self.digits if digits is None else digits}f}"
        return f"{number} {self.unit}" if self.unit else number

    def is_possible(self, value: float) -> bool:
        """Return whether a run can measure this value: a share lies between 0 and 1."""
        return self.unit != "%" or 0 <= value <= 1

    def is_better(self, value: float, other: float) -> bool:
        """Return whether ``value`` is better than ``other``."""
        return value > other if self.higher_is_better else value < other


_percent = partial(Metric, scale=100, unit="%", digits=2, short_digits=1)
_error = partial(Metric, short_digits=3, higher_is_better=False)
_accuracy_of_outputs = partial(
    _percent,
    condense="vitcli.core.metrics.stored:condense",
    per_image="vitcli.core.metrics.stored:correct",
)
"""An accuracy whose outputs are ``logits`` (N, K) and ``labels`` (N,)."""

ACCURACY = _accuracy_of_outputs(
    name="accuracy",
    label="accuracy",
    short="acc",
    of_logits="vitcli.core.metrics.classification:accuracy",
)
KNN_ACCURACY = _accuracy_of_outputs(name="knn_accuracy", label="k-NN accuracy", short="k-NN")
"""Accuracy of ``core.metrics.knn.leave_one_out_knn`` on the features of a split."""
ZERO_SHOT_ACCURACY = _accuracy_of_outputs(
    name="zero_shot_accuracy", label="zero-shot accuracy", short="zero-shot"
)
"""Accuracy of classes that are given by name, with prompts that no training caption equals."""
MASKED_MSE = _error(
    name="masked_mse",
    label="masked MSE",
    short="mse",
    condense="vitcli.core.metrics.stored:condense_errors",
    per_image="vitcli.core.metrics.stored:errors",
)
"""Mean squared error of the reconstructed pixels in masked patches, in units of the normalised
pixels. The masks of an evaluation are always the same."""

_ROWS = (
    ACCURACY,
    _error(name="loss", label="loss", of_logits="vitcli.core.metrics.classification:cross_entropy"),
    _percent(
        name="top5_accuracy",
        label="top-5 accuracy",
        of_logits="vitcli.core.metrics.classification:top5_accuracy",
    ),
    _percent(
        name="calibration_error",
        label="calibration error",
        higher_is_better=False,
        has_prefix=False,
        of_logits="vitcli.core.metrics.classification:calibration_error",
    ),
    _percent(
        name="balanced_accuracy",
        label="balanced accuracy",
        of_logits="vitcli.core.metrics.classification:balanced_accuracy",
    ),
    _percent(
        name="macro_f1",
        label="macro-F1",
        of_logits="vitcli.core.metrics.classification:macro_f1",
    ),
    KNN_ACCURACY,
    MASKED_MSE,
    _error(name="mse_ratio", label="MSE by that of the best baseline"),
    ZERO_SHOT_ACCURACY,
    _percent(name="trained_prompts_accuracy", label="accuracy with prompts of the training"),
    _percent(name="superclass_accuracy", label="accuracy of superclasses"),
    *(
        _percent(name=f"l1_{seen}_{part}_accuracy", label=f"accuracy of the {part}, {seen} pairs")
        for seen in ("seen", "unseen")
        for part in ("pair", "class", "transformation")
    ),
    _percent(name="l2_superclass_accuracy", label="accuracy of superclasses, unseen classes"),
    _percent(name="image_accuracy", label="accuracy with the image alone"),
    _percent(name="sound_accuracy", label="accuracy with the sound alone"),
)
METRICS: dict[str, Metric] = {metric.name: metric for metric in _ROWS}
"""The table of metrics by name. A number without a row has no unit."""


def metric_of(name: str) -> Metric | None:
    """Return the metric of a number in a run's files, such as ``best_val_accuracy``."""
    return METRICS.get(re.sub(r"^(best_)?(train|val|test)_", "", name))


SHARES, GAINS, ERRORS, LOSSES, UNDECIDED = (
    frozenset(words.split())
    for words in (
        "acc accuracy top f1 auc auroc auprc ap map precision recall iou miou dice sensitivity"
        " specificity jaccard",
        "score fscore reward return psnr ssim bleu rouge meteor r2 likelihood kappa mcc ndcg mrr"
        " elbo pearson spearman throughput fps",
        "err error errors",
        "loss losses nll logloss entropy crossentropy xent ce bce kl divergence mse rmse nrmse"
        " rmsle mae mape smape perplexity ppl bpd bpc ece mce brier wer cer eer fid fvd kid lpips"
        " epe fpr fnr hinge regret deviance misclassification seconds latency",
        "drop gap decrease reduction improvement gain delta diff difference change ratio std stddev"
        " var variance until to",
    )
)
"""Words of the names of metrics. Higher shares and gains are better, and lower errors and losses.
With one of the last words, such as in ``accuracy_drop``, a name does not say what is better."""
NEGATED = re.compile(
    r"\s*[-\u2212]|(.*(/|(?<!top)_))?\s*1\s*[-\u2212]|(.*_)?one_minus_", re.IGNORECASE
)
"""How names such as ``-loss`` or ``val/1-acc`` begin."""


def metric_of_column(name: str) -> Metric | None:
    """Return what a column of another program measures, such as ``val/acc`` or ``top1_error``.

    It is a row of ``METRICS``, or a metric whose direction the words of the name say. None if they
    do not.
    """
    camel = re.sub(r"(?<=[a-z\d])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    whole, parts = (re.findall(r"[^\W_]+", text.casefold()) for text in (name, camel))
    key = re.sub(r"^(best_)?(train|val|test|eval|valid|validation|dev)_", "", "_".join(parts))
    key = re.sub(r"_(epoch|step)$", "", key)
    negative = key.startswith(("neg_", "negative_"))
    flips = negative or bool(NEGATED.match(name))
    key = re.sub(r"(?<![a-z])(acc(uracy)?(_?(top_?)?1)?|top_?1(_acc(uracy)?)?)$", "accuracy", key)
    if key in METRICS and not flips:
        return METRICS[key]
    words = {*whole, *parts}
    words |= {word.rstrip("0123456789") for word in words}
    is_lower, is_share = bool(words & (ERRORS | LOSSES)), bool(words & SHARES)
    if words & UNDECIDED or not (is_lower or words & (SHARES | GAINS)) or (negative and is_share):
        return None
    kind = _percent if is_share and not words & LOSSES else Metric
    return kind(name=name, label=name, higher_is_better=is_lower == flips)
