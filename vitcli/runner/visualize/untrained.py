"""Attention of untrained models with the architecture of a run, to compare the run with."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from vitcli.core.models.vit import VisionTransformer
from vitcli.runner.evaluate.trained_run import TrainedRun
from vitcli.runner.experiment.build import encoder_of, new_module
from vitcli.runner.visualize.attention_numbers import AttentionNumbers, measure_attention
from vitcli.runner.visualize.statistics import mean_and_error, prediction_interval

NUM_MODELS = 8
NUM_IMAGES = 64
"""Few images suffice, because untrained models differ less between images than between seeds."""


@dataclass(frozen=True, kw_only=True)
class UntrainedModels:
    """The numbers of untrained models, all on the same test images."""

    seeds: tuple[int, ...]
    """Random seeds of the initial weights: the seed of the run and the next ones."""
    num_images: int
    models: tuple[AttentionNumbers, ...]


def measure_untrained(tested: TrainedRun) -> UntrainedModels:
    """Measure untrained models of the run's architecture. The result is deterministic."""
    first = tested.spec.seed
    seeds = tuple(range(first, first + NUM_MODELS))
    index = tested.spread_images(min(NUM_IMAGES, tested.num_images))
    models = (untrained_model(tested, seed) for seed in seeds)
    numbers = tuple(measure_attention(model, tested.batches(index)) for model in models)
    return UntrainedModels(seeds=seeds, num_images=len(index), models=numbers)


def untrained_model(tested: TrainedRun, seed: int) -> VisionTransformer:
    """Return a model of the run's architecture with the initial weights of a random seed."""
    spec = tested.spec.replace(seed=seed)
    model = encoder_of(spec, new_module(spec))
    assert isinstance(model, VisionTransformer)
    return model.to(tested.device).eval()


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One number of a trained model beside the same number of untrained models.

    Both sources of chance count. An untrained model is one unit: its number is a mean over images,
    and the prediction interval says where one more untrained model is expected. The error of the
    trained model is that of its images.
    """

    number: float
    """The mean of the trained model over its images."""
    error: float | None
    """Half the 95 % interval of this mean over images; None for one image."""
    low: float
    """Lower end of the 95 % prediction interval of untrained models."""
    high: float
    """Upper end of this interval."""

    @property
    def is_below(self) -> bool:
        return self.error is not None and self.number + self.error < self.low

    @property
    def is_above(self) -> bool:
        return self.error is not None and self.number - self.error > self.high


def compare(trained: Tensor, untrained: Sequence[Tensor]) -> Comparison:
    """Compare a trained model with untrained ones; each tensor is one value per image, (n,)."""
    number, error = mean_and_error(trained)
    low, high = prediction_interval([mean_and_error(each)[0] for each in untrained])
    return Comparison(number=number, error=error, low=low, high=high)
