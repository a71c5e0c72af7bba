"""`vitcli data`: which data sets there are, where they are, what is in them."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitcli.cli.console import emit, emit_json, say, table
from vitcli.cli.options import DataDir, Json, Offline, group

if TYPE_CHECKING:
    from vitcli.runner.data.load import DataInfo, DataStatus
    from vitcli.runner.data.report import DataReport

commands = group(help="List, describe and download data sets.")

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="A name ('vitcli data ls'), or imagefolder:PATH.")
]


@commands.command()
def ls(json: Json = False) -> None:
    """List the data sets with a name, and where each is found."""
    from vitcli.runner.data.report import catalogue

    found = catalogue()
    if json:
        emit_json([facts(info) | where(status) for info, status in found])
        return
    header = ["name", "size", "classes", "train", "test", "where"]
    emit(table(header, [row(info, status) for info, status in found], numeric=[2, 3, 4]))
    say("your own pictures: imagefolder:PATH with train/<class>/* and test/<class>/*")
    say("next: vitcli data info NAME")


def facts(info: "DataInfo") -> dict[str, Any]:
    """What is known without reading images."""
    return {
        "name": info.name,
        "img_size": list(info.img_size),
        "in_chans": info.in_chans,
        "num_classes": info.num_classes,
        "num_train": info.num_train,
        "num_test": info.num_test,
    }


def where(status: "DataStatus") -> dict[str, Any]:
    """Where a data set was found, in what form."""
    return {
        "kind": status.kind,
        "place": None if status.place is None else str(status.place),
        "decoded": [str(path) for path in status.decoded],
    }


def row(info: "DataInfo", status: "DataStatus") -> list[str]:
    """One line of the table."""
    height, width = info.img_size
    counts = [f"{count:,}" for count in (info.num_classes, info.num_train, info.num_test)]
    return [info.name, f"{height}x{width}x{info.in_chans}", *counts, place(status)]


def place(status: "DataStatus") -> str:
    """Where a data set is, or what to type."""
    if status.kind == "missing":
        return f"not here: vitcli data get {status.name}"
    return "embedded" if status.place is None else f"{status.place} ({status.kind})"


@commands.command()
def info(
    name: Name,
    data_dir: DataDir = None,
    picture: Annotated[
        Path | None,
        typer.Option(metavar="FILE.png", help="Draw ten images of each class.", show_default=False),
    ] = None,
    json: Json = False,
) -> None:
    """Describe a data set that is here: splits, classes, statistics, hash."""
    from vitcli.runner.data.contact_sheet import require_png, write_contact_sheet
    from vitcli.runner.data.report import report

    if picture is not None:
        require_png(picture)
    found = report(name, data_dir, on_message=say)
    if picture is not None:
        write_contact_sheet(found.data, picture)
        say(f"wrote {picture}")
    if json:
        emit_json(document(found) | {"picture": picture})
        return
    emit(described(found))
    option = f" --data-dir {shlex.quote(str(data_dir))}" if data_dir else ""
    say(f"next: vitcli train --data {shlex.quote(name)}{option}")


def document(found: "DataReport") -> dict[str, Any]:
    """Everything as JSON."""
    data = found.data
    return {
        "name": data.name,
        **where(found.status),
        "img_size": list(data.img_size),
        "in_chans": data.in_chans,
        "num_classes": data.num_classes,
        "class_names": list(data.class_names),
        "num_train": len(data.train),
        "num_test": len(data.test),
        "images_per_class": {split: list(row) for split, row in found.counts.items()},
        "mean": list(data.mean),
        "std": list(data.std),
        "data_hash": data.data_hash,
        "note": found.note,
    }


def described(found: "DataReport") -> str:
    """Everything as text."""
    data = found.data
    height, width = data.img_size
    mean, std = (", ".join(f"{value:.4f}" for value in row) for row in (data.mean, data.std))
    lines = [
        f"name      {data.name}",
        f"where     {place(found.status)}",
        f"images    {len(data.train):,} for training, {len(data.test):,} for testing",
        f"size      {height}x{width}, {data.in_chans} channels",
        f"mean      {mean}   (of the training images, pixels from 0 to 1)",
        f"std       {std}",
        f"hash      {data.data_hash}",
    ]
    rows = [
        [name, f"{train:,}", f"{test:,}"]
        for name, train, test in zip(data.class_names, *found.counts.values(), strict=True)
    ]
    lines += ["", table(["class", "train", "test"], rows, numeric=[1, 2])]
    return "\n".join([*lines, *(["", found.note] if found.note else [])])


@commands.command()
def get(
    name: Name,
    source: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="URL|PATH", help="Take it from here.", show_default="its mirrors"
        ),
    ] = None,
    offline: Offline = False,
    json: Json = False,
) -> None:
    """Download a data set, or copy it, into the cache, checked and decoded."""
    from vitcli.runner.data.load import get_data

    status = get_data(name, source, offline=offline, on_message=say)
    if json:
        emit_json({"name": status.name, **where(status)})
        return
    emit(f"{status.name}  {place(status)}")
    say(f"next: vitcli data info {name}, vitcli train --data {name}")
