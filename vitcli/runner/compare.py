"""Two configurations or two runs side by side."""

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from vitcli.core.spec import ExperimentSpec
from vitcli.runner.config import SIZES, STATISTICS
from vitcli.runner.errors import InputError
from vitcli.runner.run_dir import RunDir

Pair = tuple[Any, Any]

MEASURES = (
    "test_accuracy",
    "test_loss",
    "test_top5_accuracy",
    "calibration_error",
    "val_accuracy",
    "train_loss",
    "train_accuracy",
    "parameters",
    "epochs",
    "train_seconds",
    "images_per_second",
)
FACTS = ("data_hash", "commit", "dirty", "torch", "hardware", "device", "threads")


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What differs between two runs, and what both measured; each value is a pair."""

    config: dict[str, Pair]
    facts: dict[str, Pair]
    measures: dict[str, Pair]


def differences(one: BaseModel, other: BaseModel, prefix: str = "") -> dict[str, Pair]:
    """Dotted field -> (value in ``one``, value in ``other``) for the fields that differ."""
    found: dict[str, Pair] = {}
    for name in type(one).model_fields:
        left, right = getattr(one, name), getattr(other, name)
        if isinstance(left, BaseModel) and isinstance(right, BaseModel):
            found |= differences(left, right, f"{prefix}{name}.")
        elif left != right:
            found[prefix + name] = (left, right)
    return found


def filled(spec: ExperimentSpec, stored: ExperimentSpec, meta: dict[str, Any]) -> ExperimentSpec:
    """``spec`` with the fields that follow the data set taken from a stored, resolved spec.

    Mean and std follow it too, unless they were typed for the stored run.
    """
    typed = meta.get("typed", [])
    follow = ["class_names", *(name for name in STATISTICS if name not in typed)]
    model = {k: getattr(stored.model, k) for k in SIZES if getattr(spec.model, k) is None}
    data = {k: getattr(stored.data, k) for k in follow if getattr(spec.data, k) is None}
    return spec.replace(model=spec.model.replace(**model), data=spec.data.replace(**data))


def changed_fields(spec: ExperimentSpec) -> dict[str, Any]:
    """Dotted field -> value for what differs from the defaults."""
    return {name: value for name, (_, value) in differences(ExperimentSpec(), spec).items()}


def readable_metrics(run: RunDir) -> list[dict[str, Any]]:
    """The epochs of a run; none where metrics.jsonl is damaged."""
    try:
        return run.metrics()
    except InputError:
        return []


def last_measures(run: RunDir) -> dict[str, Any]:
    """result.json, or what the epochs so far have measured."""
    measured: dict[str, Any] = {}
    for record in readable_metrics(run):
        measured |= {name: value for name, value in record.items() if value is not None}
    if "epoch" in measured:
        measured["epochs"] = measured.pop("epoch")
    found = run.read("result.json") or measured
    return {k: v for k, v in found.items() if k == "precision" or isinstance(v, int | float)}


def compare_runs(one: RunDir, other: RunDir) -> Comparison:
    """What differs between two runs, and what both measured."""
    facts = [run.read("meta.json") for run in (one, other)]
    measures = [last_measures(run) for run in (one, other)]
    return Comparison(
        config=differences(one.spec(), other.spec()),
        facts={k: (a, b) for k, (a, b) in _pairs(facts, FACTS).items() if a != b},
        measures=_pairs(measures, MEASURES),
    )


def _pairs(sides: list[dict[str, Any]], names: tuple[str, ...]) -> dict[str, Pair]:
    """The values of both sides, for the names that at least one of them has."""
    pairs = {name: (sides[0].get(name), sides[1].get(name)) for name in names}
    return {name: pair for name, pair in pairs.items() if pair != (None, None)}
