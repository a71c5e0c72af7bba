"""Published weights that the models of a family may start from."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from vitcli.core.models.image_model import ImageModel
from vitcli.core.spec import FAMILIES, ExperimentSpec
from vitcli.plugin import load_target
from vitcli.runner.run.folder import RunDir

Listener = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class PublishedWeights:
    """How a family finds and reads weights that others have trained."""

    first_file: Callable[[ExperimentSpec, bool, Listener], Path | None]
    """Returns the file that a model starts from, offline if asked; None for a run or random
    weights."""
    load: Callable[[ImageModel, RunDir | Path, Listener, Sequence[str]], None]
    """Copies the weights of a run or file into a model. A head for classes of other names stays."""
    model: Callable[[str, bool, Listener], tuple[ExperimentSpec, ImageModel]]
    """Returns the model of a name with its published weights, offline if asked."""


def published_weights(family: str) -> PublishedWeights | None:
    """Return the published weights of a family, if it has some."""
    target = FAMILIES[family].weights
    return load_target(target) if target else None


def first_file(spec: ExperimentSpec, offline: bool, on_message: Listener) -> Path | None:
    """Return the file that the model of an experiment starts from; else None."""
    weights = published_weights(spec.model.family)
    return weights.first_file(spec, offline, on_message) if weights else None
