"""Whether a point of the space is valid, and its sizes. Nothing is trained."""

from collections.abc import Callable
from dataclasses import dataclass

from vitcli.core.inspect.cost import count_parameters, forward_flops
from vitcli.core.spec import ExperimentSpec
from vitcli.runner.data.load import describe_data
from vitcli.runner.errors import ConfigError
from vitcli.runner.experiment.build import abstract_module, encoder_of
from vitcli.runner.experiment.sizes import fit_to_data
from vitcli.runner.search.definition import Search
from vitcli.runner.search.space import Point, point_key
from vitcli.runner.train.estimate import training_flops

INVALID = "not a valid configuration"
EXCLUDED = "left out by search.rules.exclude"


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The sizes of a model and of its training."""

    parameters: int
    forward_flops: int
    train_flops: int | None = None
    """None unless the search needs them, because counting them takes longer."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A point: its configuration, or the rule that it breaks."""

    point: Point
    rule: str = ""
    """The broken rule; empty for a valid point."""
    detail: str = ""
    """What exactly breaks the rule."""
    spec: ExperimentSpec | None = None
    sizes: Sizes | None = None


class Judge:
    """Judges the points of a search; the verdict on a point is kept.

    Args:
        search: The search with its rules.
        measure: Returns the sizes of a configuration.
    """

    def __init__(
        self, search: Search, measure: Callable[[ExperimentSpec, bool], Sizes] | None = None
    ) -> None:
        self.search, self._measure = search, measure or measure_sizes
        self._known: dict[str, Verdict] = {}

    def __call__(self, point: Point) -> Verdict:
        """Return the verdict on a point."""
        key = point_key(point)
        if key not in self._known:
            self._known[key] = self._judge(point)
        return self._known[key]

    def _judge(self, point: Point) -> Verdict:
        search, rules = self.search, self.search.fields.rules
        if search.excluded(point):
            return Verdict(point=point, rule=EXCLUDED)
        needs_training = rules.max_train_flops is not None or search.fields.cost == "train_flops"
        try:
            spec = search.spec(point)
            sizes = self._measure(spec, needs_training)
        except ConfigError as error:
            return Verdict(point=point, rule=INVALID, detail=str(error))
        for name in ("parameters", "forward_flops", "train_flops"):
            limit, value = getattr(rules, f"max_{name}"), getattr(sizes, name)
            if limit is not None and value > limit:
                label = name.replace("flops", "FLOPs").replace("_", " ")
                rule, detail = f"more than {limit:,} {label}", f"{value:,} {label}"
                return Verdict(point=point, rule=rule, detail=detail)
        return Verdict(point=point, spec=spec, sizes=sizes)


def measure_sizes(spec: ExperimentSpec, with_training: bool) -> Sizes:
    """Return the sizes of a configuration; the model is built without memory."""
    fitted = fit_to_data(spec, describe_data(spec.data))
    module = abstract_module(fitted)
    encoder = encoder_of(fitted, module)
    return Sizes(
        parameters=count_parameters(module),
        forward_flops=forward_flops(encoder, encoder.image_shape),
        train_flops=training_flops(spec) if with_training else None,
    )
