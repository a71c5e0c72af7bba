"""The fields of a search file, under ``search:``. No torch and no Optuna."""

from typing import Any, Literal

from pydantic import Field

from vitcli.core.spec import Spec
from vitcli.runner.experiment.seeds import MAX_SEED, Seeds


class RuleFields(Spec):
    """Which configurations are valid, besides the rules that the fields themselves have."""

    max_parameters: int | None = Field(None, ge=1)
    """Number of parameters, at most; unset allows any."""
    max_forward_flops: int | None = Field(None, ge=1)
    """FLOPs of one image in a forward pass, at most; a multiply-add counts as two."""
    max_train_flops: int | None = Field(None, ge=1)
    """FLOPs of a whole training, at most."""
    exclude: list[dict[str, Any]] = Field(default_factory=list)
    """Combinations to leave out: dotted field -> value, or list of values. A configuration is left
    out if all fields of one entry match."""


class RepeatFields(Spec):
    """Trainings with further random seeds, which measure how much the score of a trial varies."""

    seeds: Seeds
    """Random seeds of the repeats; none may be the seed of the search."""
    configurations: int = Field(20, ge=1)
    """Number of finished configurations that are repeated, spread evenly over their scores."""


class FinalFields(Spec):
    """The final stage: base and winner, trained on training and validation images, then tested."""

    seeds: Seeds
    """Random seeds of the final trainings; none may be a seed of the search."""
    changes: dict[str, Any] = Field(default_factory=dict)
    """Dotted fields to change for base and winner, such as ``train.epochs``."""


class SearchFields(Spec):
    """Fields of a search file under ``search``."""

    space: dict[str, Any] = Field(min_length=1)
    """Dotted field -> list of choices, or a range: ``{low: 1.0e-4, high: 1.0e-2, log: true}``."""
    rules: RuleFields = RuleFields()
    """Limits, and combinations to leave out. A point that breaks a rule does not count as a
    trial."""
    sampler: Literal["random", "grid", "tpe", "nsga2", "evolution"] = "tpe"
    """``grid`` takes every configuration once; ``evolution`` is regularised (ageing) evolution."""
    population: int = Field(10, ge=2, le=10_000)
    """Size of the population of ``evolution`` and ``nsga2``."""
    sample_size: int = Field(5, ge=1, le=10_000)
    """Number of members of the population of which ``evolution`` mutates the best."""
    trials: int | None = Field(None, ge=1, le=100_000)
    """Number of configurations to train; unset trains all configurations of a grid."""
    cost: Literal["parameters", "forward_flops", "train_flops"] | None = None
    """Second objective, to be small; unset searches for the best score alone."""
    pruning: Literal["none", "median", "halving"] = "none"
    """Stop trials early whose score is below the median of the others at the same epoch, or that
    lose in successive halving."""
    seed: int = Field(0, ge=0, le=MAX_SEED)
    """Random seed of the sampler."""
    threads: int = Field(1, ge=1, le=256)
    """CPU threads of each trial."""
    repeats: RepeatFields | None = None
    """Trainings with further seeds; unset repeats none."""
    final: FinalFields | None = None
    """Final stage; unset trains no winner again and reads no test image."""


class SearchFile(Spec):
    """Fields of a search file that an experiment file does not have."""

    search: SearchFields | None = None
    """Space, rules and budget of a search; unset is no search."""
