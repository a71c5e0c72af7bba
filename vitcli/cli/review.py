"""The output of `vitcli eval --review`."""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitcli.cli.console import emit_measured, say
from vitcli.runner.tables import Table, make_table
from vitcli.runner.text import quantity

if TYPE_CHECKING:
    from vitcli.runner.evaluate.review import Doubt, Review

AS_CSV = ("--reject", "0.8", "--format", "csv")
FIELDS = ("name", "given", "given_probability", "predicted", "predicted_probability")


def print_review(run: str, form: str, common: dict[str, Any]) -> float:
    """Write the page of a review and print what is on it; return the accuracy."""
    from vitcli.cli.live import stages
    from vitcli.runner.data.listing import own_path, split_of
    from vitcli.runner.errors import ConfigError
    from vitcli.runner.evaluate.review import review_run
    from vitcli.runner.visualize.review_page import write_review

    if common["split"] != "test":
        raise ConfigError("--review shows the test and the training images; leave out --split")
    options = {name: value for name, value in common.items() if name != "split"}
    with stages() as on_stage:
        found = review_run(run, on_message=say, on_stage=on_stage, **options)
    page = write_review(found, common["data_dir"])
    emit_measured(form, document(found, page), tables(found, page), csv_rows(found))
    say(f"next: open {page} in a browser")
    name = found.found.spec.data.name
    if name.startswith("imagefolder:") and (root := own_path(name, common["data_dir"])):
        splits = [path for path in sorted(root.iterdir()) if split_of(path.name) == "test"]
        pictures = next((path for path in splits if path.is_dir()), root)
        command = found.found.run.command("predict")
        say(f"next: {command} {shlex.join([str(pictures), *AS_CSV])}")
    return found.accuracy


def document(found: "Review", page: Path) -> dict[str, Any]:
    """Return the page and the lists as JSON values."""
    return {
        "run": str(found.found.run.path),
        "page": str(page),
        "num_test": found.num_test,
        "num_errors": found.num_errors,
        "temperature": found.temperature,
        "errors": [_fields(doubt) for doubt in found.errors],
        "num_checked": found.num_checked,
        "num_suspects": found.num_suspects,
        "suspects": [_fields(doubt) for doubt in found.suspects],
        "num_copies": found.num_copies,
        "copies": [[_fields(doubt) for doubt in pair] for pair in found.copies],
        "notes": found.notes,
    }


def _fields(doubt: "Doubt") -> dict[str, Any]:
    return {field: getattr(doubt, field) for field in FIELDS}


def tables(found: "Review", page: Path) -> list[Table]:
    """Return the counts and the page as a table."""
    copies = "not compared" if found.num_copies is None else quantity(found.num_copies, "pair")
    suspects = "not checked"
    if found.num_checked:
        total = quantity(found.num_checked, "training image")
        suspects = f"{found.num_suspects:,} of {total}, by probes that have not seen them"
    rows = [
        ("errors", f"{found.num_errors:,} of {quantity(found.num_test, 'test image')}"),
        ("suspect labels", suspects),
        ("copies with two labels", copies),
        *[("note", note) for note in found.notes],
        ("page", str(page)),
    ]
    return [make_table(["run", found.found.run.name], rows)]


def csv_rows(found: "Review") -> Iterator[Sequence[Any]]:
    """Yield a header and a row for each picture of the three lists."""
    yield ["list", *FIELDS]
    copies = [doubt for pair in found.copies for doubt in pair]
    lists = {"errors": found.errors, "suspects": found.suspects, "copies": copies}
    for name, doubts in lists.items():
        yield from ([name, *_fields(doubt).values()] for doubt in doubts)
