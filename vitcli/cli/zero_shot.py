"""The output of `vitcli eval --zero-shot`."""

import csv
import io
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from vitcli.cli.console import percent, table

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


def text(found: "ZeroShot") -> str:
    """Return the result as plain text."""
    rows = table(list(HEAD), classes(found), numeric=[1, 2, 3])
    return f"{table(['run', found.run.name], measures(found))}\n\n{rows}"


def markdown(found: "ZeroShot") -> str:
    """Return the result as Markdown tables."""
    escape = str.maketrans({"|": "\\|"})
    tables = (
        [("run", found.run.name), ("---", "---"), *measures(found)],
        [HEAD, ("---",) * len(HEAD), *classes(found)],
    )
    return "\n\n".join(
        "\n".join("| " + " | ".join(c.translate(escape) for c in row) + " |" for row in rows)
        for rows in tables
    )


def as_csv(found: "ZeroShot") -> str:
    """Return CSV with one line for each class."""
    out = io.StringIO()
    lines = csv.writer(out, lineterminator="\n")
    lines.writerow(HEAD)
    for each in found.classes:
        lines.writerow([each.name, each.num_images, each.accuracy, each.num_assigned])
    return out.getvalue().rstrip("\n")
