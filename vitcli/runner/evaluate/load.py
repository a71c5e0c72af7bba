"""A classifier by its name: of a run, or of a file that a plugin reads. No torch."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from vitcli.plugin import Registry, missing_for
from vitcli.runner.data.pictures import FITS
from vitcli.runner.errors import ConfigError
from vitcli.runner.evaluate.classifier import Classifier
from vitcli.runner.text import Listener, join_words, write_message

CLASSIFIERS = Registry[Callable[..., Classifier]]("classifier")
"""Suffix of a model file -> what loads it: from its path and the options of ``load_classifier``."""


def load_classifier(
    source: str | os.PathLike[str],
    *,
    device: str = "auto",
    fit: str | None = None,
    reject: float | None = None,
    coverage: float | None = None,
    on_message: Listener = write_message,
) -> Classifier:
    """Return a trained classifier that takes pictures and returns classes with probabilities.

    An ONNX file needs onnxruntime and no torch. The model of a task such as ``multilabel`` returns
    ``answers`` instead: its labels, or a number.

    Args:
        source: A run folder, a name under runs/, a bundled model, or an ONNX file of
            ``vitcli export``.
        device: Device that computes: auto, cpu, cuda, cuda:1 or mps.
        fit: How to fit pictures of another aspect ratio: crop, pad or stretch; by default as in
            the training.
        reject: Accept only answers with this probability, from 0 to 1.
        coverage: Accept only answers whose prediction set has one class. This share of the sets
            holds the true class: 0.8, 0.9, 0.95 or 0.99.
        on_message: Receives notes, such as how the weights were found. Writes to stderr by default.

    Raises:
        UserError: There is no such model, it does not classify, or it lacks what an option needs.
    """
    if reject is not None and not 0 <= reject <= 1:
        raise ConfigError(f"reject={reject}: it takes a probability from 0 to 1")
    if reject is not None and coverage is not None:
        raise ConfigError("reject and coverage exclude each other; leave out one of them")
    if fit not in (None, *FITS):
        raise ConfigError(f"fit={fit!r}: it takes crop, pad or stretch")
    options: dict[str, Any] = {"device": device, "fit": fit, "reject": reject}
    options |= {"coverage": coverage, "on_message": on_message}
    if not isinstance(source, str | os.PathLike):
        raise ConfigError(f"load_classifier: {type(source).__name__} names no run and no file")
    path = Path(source)
    if path.suffix in CLASSIFIERS:
        return CLASSIFIERS[path.suffix](path, **options)
    if problem := missing_for(CLASSIFIERS.field, path.suffix):
        raise ConfigError(f"{path}: {problem}")
    from vitcli.runner.evaluate.predict import classifier_of_run  # it imports torch

    classifier = classifier_of_run(os.fspath(source), **options)
    require_classes(classifier, {"reject": reject, "coverage": coverage})
    return classifier


def require_classes(classifier: Classifier, options: Mapping[str, Any]) -> None:
    """Refuse options that are given and need a likeliest class, if a classifier has none."""
    if classifier.answers and (given := [n for n, value in options.items() if value is not None]):
        raise ConfigError(
            f"{join_words(given)}: {classifier.model} answers with"
            f" {join_words(classifier.answers)}, and has no likeliest class; leave it out"
        )
