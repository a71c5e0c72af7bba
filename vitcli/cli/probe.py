"""The output of `vitcli eval --probe`."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from vitcli.runner.tables import Table, make_table
from vitcli.runner.text import percent

if TYPE_CHECKING:
    from vitcli.runner.evaluate.probe import Probe, ProbeScore

NAMES = {"linear": "linear probe", "knn": "k-NN probe"}


def document(found: "Probe") -> dict[str, Any]:
    """Return the result as JSON values."""
    return {
        "run": str(found.run.path),
        "probe": found.kind,
        "split": found.split,
        **_numbers(found.trained),
        "random_init": _numbers(found.untrained),
        "num_labels": found.num_labels,
        "num_images": found.num_images,
        "num_features": found.num_features,
    }


def _numbers(score: "ProbeScore") -> dict[str, Any]:
    numbers = {"accuracy": score.accuracy, "accuracy_interval_95": list(score.interval)}
    return numbers if score.strength is None else numbers | {"l2_strength": score.strength}


def measures(found: "Probe") -> list[tuple[str, str]]:
    """Return the result as rows of text."""
    low, high = (percent(bound) for bound in found.trained.interval)
    first, last = (percent(bound) for bound in found.untrained.interval)
    rows = [
        (
            NAMES[found.kind],
            f"{percent(found.trained.accuracy)} of {found.num_images:,} {found.split} images",
        ),
        ("95 % interval", f"{low} to {high} (sampling error of the {found.split} images only)"),
        (
            "random-init encoder",
            f"{percent(found.untrained.accuracy)} ({first} to {last}), the same probe",
        ),
        ("labels", f"{found.num_labels:,} training images"),
        ("features", f"{found.num_features:,} of the frozen encoder"),
    ]
    if (strength := found.trained.strength) is not None:
        how = "chosen on held-out training images"
        why = how if found.trained.is_chosen else "too few labels to choose one"
        rows.append(("L2 strength", f"{strength:g} ({why})"))
    return rows


def tables(found: "Probe") -> list[Table]:
    return [make_table(["run", found.run.name], measures(found))]


def csv_rows(found: "Probe") -> Iterator[Sequence[Any]]:
    """Yield a header and a row per encoder: accuracy, its 95 % interval, labels and images."""
    yield ["encoder", "accuracy", "low", "high", "labels", "images"]
    for name, score in (("trained", found.trained), ("random-init", found.untrained)):
        yield [name, score.accuracy, *score.interval, found.num_labels, found.num_images]
