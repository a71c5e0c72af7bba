"""What a column of another program measures, by its name."""

import re
from dataclasses import replace

from vitcli.core.metric import ACCURACY, METRICS, NUMBERS, Metric

SHARES, GAINS, ERRORS, LOSSES, SPLITS = (
    frozenset(words.split())
    for words in (
        "acc accuracy acc1 top1 top1acc top1accuracy acc5 top5 top5acc top5accuracy f1 f1score"
        " macrof1 microf1 weightedf1 macroavgf1score weightedavgf1score auc auroc rocauc aucroc"
        " auprc prauc aucpr ap map precision recall iou miou dice",
        "score r2 psnr ssim bleu reward",
        "err error errorrate top1error top1err top5error top5err wer cer ece mape",
        "loss nll logloss crossentropy ce bce kl mse rmse mae perplexity ppl fid brier nllloss"
        " celoss bceloss mseloss crossentropyloss diceloss focalloss",
        "best final last max min train val valid validation test eval dev epoch percent pct"
        " percentage fraction proportion",
    )
)
"""Names of metrics, without underscores. Higher shares and gains, lower errors and losses are
better; shares and errors are shares of 1. ``SPLITS`` are words beside such a name."""
PREFIX = re.compile(r"(params|metrics|config|summary)\.", re.IGNORECASE)
"""What exports of W&B and MLflow write before the name of a column."""


def metric_of_column(name: str, *, lower_is_better: bool | None = None) -> Metric | None:
    """Return what a column of another program measures, such as ``val/acc`` or ``top1_error``.

    It is a row of ``METRICS`` or a metric whose whole name is known. Any other name does not say
    which direction is better, so it is None unless ``lower_is_better`` says it.
    """
    name, key = PREFIX.sub("", name), key_of(name)
    rows = {each.replace("_", ""): row for each, row in [*METRICS.items(), *NUMBERS.items()]}
    aliases = dict.fromkeys(("acc", "acc1", "top1", "top1acc", "top1accuracy"), ACCURACY)
    metric = rows.get(key) or aliases.get(key)
    if metric is None and key in SHARES | GAINS | ERRORS | LOSSES:
        unit = "%" if key in SHARES | ERRORS else ""
        metric = Metric(name=name, label=name, unit=unit, higher_is_better=key in SHARES | GAINS)
    if lower_is_better is not None:
        metric = metric or Metric(name=name, label=name)
        metric = replace(metric, higher_is_better=not lower_is_better)
    return metric


def key_of(name: str) -> str:
    """Return the words of a name that say what it measures; none if it has other signs."""
    name = PREFIX.sub("", name)
    if re.search(r"[^\w\s/.,@%()\[\]:-]|(?<!\w)-", name):  # -loss is no loss
        return ""
    words = re.findall(r"[^\W_]+", name.casefold())
    return "".join(word for word in words if word not in SPLITS)
