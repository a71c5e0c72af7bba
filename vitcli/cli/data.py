"""`vitcli data`: lists, descriptions and downloads of data sets."""

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from vitcli.cli import complete
from vitcli.cli import options as shared
from vitcli.cli.console import confirmed, emit_report, say
from vitcli.cli.options import DATA_HELP, group, output_option, with_code
from vitcli.runner.data.catalogue import CATALOGUE
from vitcli.runner.report.report import DataTable, Fact, Field, Report, facts_of, hidden
from vitcli.runner.text import quantity, size_text

if TYPE_CHECKING:
    from vitcli.core.data.source import DataSet
    from vitcli.runner.data.load import DataStatus

commands = group(help="List, describe, download and remove data sets.", example="vitcli data ls")

Name = Annotated[str, Argument(metavar="DATASET", help=DATA_HELP, autocompletion=complete.data_set)]


@commands.command(example="vitcli data ls")
def ls(form: shared.Format = "text") -> None:
    """List the named data sets and where each is stored."""
    from vitcli.core.spec import DATA_READERS, DATA_SETS, DataSpec
    from vitcli.runner.data.load import data_status, describe_data

    known = ("name", "img_size", "in_chans", "num_classes", "num_train", "num_test")
    rows = []
    for name in DATA_SETS:
        info = describe_data(DataSpec(name=name))
        rows.append({field: getattr(info, field) for field in known} | where(data_status(name)))
    columns: list[Field | str] = [
        *("name", Field("img_size", "size", text=size_of), Field("in_chans", "channels")),
        *("num_classes", "num_train", "num_test", "kind", "place"),
        Field("decoded", is_shown=False),
    ]
    own = [{"name": row.example, "about": row.about} for row in DATA_READERS.values()]
    tables = [
        DataTable("data_sets", columns, rows),
        DataTable("own_pictures", [Field("name", "own pictures"), Field("about", "what")], own),
    ]
    following = ["vitcli data get DATASET", "vitcli data info DATASET"]
    emit_report(Report(tables=tables, next=following), form)


def size_of(size: Sequence[int]) -> str:
    return "x".join(map(str, size))


def where(status: "DataStatus") -> dict[str, Any]:
    place = None if status.place is None else str(status.place)
    return {"kind": status.kind, "place": place, "decoded": [*map(str, status.decoded)]}


@commands.command(example="vitcli data info scenes")
@with_code
def info(
    name: Name,
    data_dir: shared.DataDir = None,
    skip_bad: shared.SkipBad = False,
    picture: Annotated[
        Path | None, output_option("FILE.png", "Draw ten images of each class into this PNG file.")
    ] = None,
    form: shared.Format = "text",
) -> None:
    """Describe a data set on disk: splits, classes, mean, std, hash."""
    from vitcli.runner.data.contact_sheet import require_png, write_contact_sheet
    from vitcli.runner.data.find import check_name, refuse_unused_folder
    from vitcli.runner.data.load import data_status, load_data
    from vitcli.runner.experiment import config as experiment
    from vitcli.runner.experiment.yaml_text import on_command_line

    if picture is not None:
        require_png(picture)
    check_name(name, takes_code=True)
    refuse_unused_folder(name, data_dir)
    status = data_status(name, data_dir)
    places = on_command_line({"data.skip_bad": skip_bad}, {"data.skip_bad": "--skip-bad"})
    spec = experiment.parse_experiment({"data": {"name": name, "skip_bad": skip_bad}}, places)
    data = load_data(spec.data, data_dir=data_dir, offline=True, on_message=say)
    if picture is not None:
        write_contact_sheet(data, picture)
    words = [*experiment.typed_command("train"), "--data", name]
    words += ["--data-dir", str(data_dir)] if data_dir else []
    command = shlex.join(words + ["--skip-bad"] * skip_bad)
    files = [] if picture is None else [picture]
    emit_report(replace(report_of(status, data), files=files, next=[command]), form)


def report_of(status: "DataStatus", data: "DataSet") -> Report:
    from vitcli.runner.data.extras import images_by_class

    note = CATALOGUE[data.name].note if data.name in CATALOGUE else None
    splits = [(images.extra, images.labels) for images in (data.train, data.test)]
    counts = [images_by_class(*split, data.num_classes) for split in splits]
    place = where(status)
    decoded = place.pop("decoded")
    pixels = "(of the training images, pixels from 0 to 1)"
    return Report(
        facts=[
            *facts_of(name=data.name, **place),
            *hidden(decoded=decoded),
            *facts_of(num_train=len(data.train), num_test=len(data.test)),
            Fact("img_size", list(data.img_size), text=size_of(data.img_size)),
            *facts_of(in_chans=data.in_chans, num_classes=data.num_classes),
            Fact("mean", list(data.mean), about=pixels),
            *facts_of(std=list(data.std), data_hash=data.data_hash),
        ],
        tables=[class_counts(zip(data.class_names, *counts, strict=True))],
        notes=[note] if note else [],
    )


def class_counts(counts: Iterable[tuple[str, int, int]], test: str = "test") -> DataTable:
    rows = [{"class": name, "train": train, "test": tested} for name, train, tested in counts]
    return DataTable("classes", ["class", "train", Field("test", test)], rows)


@commands.command(example="vitcli data get cifar10")
def get(
    name: Name,
    source: Annotated[
        str | None,
        Option(
            "--from",
            metavar="URL|PATH",
            help="URL or path to fetch the data set from.",
            show_default="published URLs",
        ),
    ] = None,
    offline: shared.Offline = False,
    form: shared.Format = "text",
) -> None:
    """Download or copy a data set into the cache, and decode it."""
    from vitcli.runner.data.get import get_data
    from vitcli.runner.data.load import data_status

    get_data(name, source, offline=offline, on_message=say)
    status = data_status(name)
    facts = facts_of(name=status.name, **where(status))
    following = [f"vitcli data info {name}", f"vitcli train --data {name}"]
    emit_report(Report(facts=facts, next=following), form)


@commands.command(example="vitcli data rm cifar10")
def rm(name: Name, yes: shared.Yes = False, form: shared.Format = "text") -> None:
    """Remove the files of a data set from the cache.

    They are its downloads and its decoded copies. Your own pictures, and files outside the cache,
    stay.
    """
    from vitcli.runner.data.cache import files_in_cache
    from vitcli.runner.data.find import check_name, explain_write_errors

    check_name(name)
    files = files_in_cache(name)
    size = sum(path.lstat().st_size for path in files)
    if not files:
        say(f"the cache holds nothing of {name}")
    elif not yes and not confirmed(
        "data rm", [f"{quantity(len(files), 'file')} of {name} in the cache, {size_text(size)}"]
    ):
        say("nothing was removed")
        return
    for path in files:
        with explain_write_errors(path.parent):
            path.unlink(missing_ok=True)
    emit_report(Report(facts=facts_of(name=name, removed=[*map(str, files)], bytes=size)), form)
