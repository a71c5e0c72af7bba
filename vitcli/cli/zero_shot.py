"""The output of `vitcli eval --zero-shot`."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from vitcli.runner.tables import Table, make_table
from vitcli.runner.text import percent

if TYPE_CHECKING:
    from vitcli.runner.evaluate.zero_shot import ZeroShot

HEAD = ("class", "images", "accuracy", "assigned")


def document(found: "ZeroShot") -> dict[str, Any]:
    """Return the result as JSON values."""
    return {
        "run": str(found.run.path),
        "split": found.split,
        "zero_shot_accuracy": found.accuracy,
        "accuracy_interval_95": found.interval and list(found.interval),
        "num_images": found.num_images,
        "num_labelled": found.num_labelled,
        "classes": [asdict(each) for each in found.classes],
    }


def measures(found: "ZeroShot") -> list[tuple[str, str]]:
    """Return the main numbers as rows of text."""
    images = f"{found.num_images:,} {found.split} images"
    if found.accuracy is None or found.interval is None:
        return [("zero-shot accuracy", f"none: the data set has no class of these; {images}")]
    low, high = (percent(bound) for bound in found.interval)
    rows = [
        ("zero-shot accuracy", f"{percent(found.accuracy)} of {found.num_labelled:,} images"),
        ("95 % interval", f"{low} to {high} (sampling error of the {found.split} images only)"),
    ]
    if others := found.num_images - found.num_labelled:
        rows.append(("other classes", f"{others:,} of {images}, not in the accuracy"))
    return rows


def classes(found: "ZeroShot") -> list[list[str]]:
    """Return a row for each class: name, images, accuracy, and number of assigned images."""
    return [
        [
            each.name,
            "-" if each.num_images is None else f"{each.num_images:,}",
            "-" if each.accuracy is None else percent(each.accuracy, 1),
            f"{each.num_assigned:,}",
        ]
        for each in found.classes
    ]


def tables(found: "ZeroShot") -> list[Table]:
    main = make_table(["run", found.run.name], measures(found))
    return [main, make_table(HEAD, classes(found), numeric=[1, 2, 3])]


def csv_rows(found: "ZeroShot") -> Iterator[Sequence[Any]]:
    """Yield a header and a row for each class."""
    yield HEAD
    for each in found.classes:
        yield [each.name, each.num_images, each.accuracy, each.num_assigned]
