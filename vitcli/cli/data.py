"""`vitcli data`: lists, descriptions and downloads of data sets."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitcli.cli import complete
from vitcli.cli.console import confirmed, emit, emit_json, say, table
from vitcli.cli.options import DATA_HELP, DataDir, Json, Offline, SkipBad, Yes, group, with_code
from vitcli.runner.text import listed, percent, quantity

if TYPE_CHECKING:
    from vitcli.core.data.source import DataSet
    from vitcli.runner.data.check import FolderCheck
    from vitcli.runner.data.load import DataStatus

KNOWN = ("name", "img_size", "in_chans", "num_classes", "num_train", "num_test")
"""What is known of a data set without reading images."""
NUM_LISTED = 10
"""Number of files or pairs of a kind that a check names."""

commands = group(help="List, describe, download and remove data sets.", example="vitcli data ls")

Name = Annotated[
    str, typer.Argument(metavar="DATASET", help=DATA_HELP, autocompletion=complete.data_set)
]


@commands.command()
def ls(json: Json = False) -> None:
    """List the named data sets and where each is stored.

    \b
    Example:
      vitcli data ls
    """
    from vitcli.core.spec import DATA_READERS, DATA_SETS, DataSpec
    from vitcli.runner.data.load import data_status, describe_data

    facts, rows = [], []
    for name in DATA_SETS:
        info, status = describe_data(DataSpec(name=name)), data_status(name)
        known = {field: getattr(info, field) for field in KNOWN}
        facts.append(known | status_document(status))
        height, width = info.img_size
        counts = [f"{count:,}" for count in (info.num_classes, info.num_train, info.num_test)]
        place = "not here" if status.kind == "missing" else describe_place(status)
        rows.append([name, f"{height}x{width}x{info.in_chans}", *counts, place])
    if json:
        emit_json(facts)
        return
    emit(table(["name", "size", "classes", "train", "test", "where"], rows, numeric=[2, 3, 4]))
    say(table(["own pictures", "what"], [[r.example, r.about] for r in DATA_READERS.values()]))
    say("next: vitcli data get DATASET, vitcli data info DATASET")


def status_document(status: "DataStatus") -> dict[str, Any]:
    """Return where a data set is stored and in which form, as JSON values."""
    return {
        "kind": status.kind,
        "place": None if status.place is None else str(status.place),
        "decoded": [str(path) for path in status.decoded],
    }


def describe_place(status: "DataStatus") -> str:
    if status.kind == "missing":
        return f"not here: vitcli data get {status.name}"
    return "embedded" if status.place is None else f"{status.place} ({status.kind})"


@commands.command()
@with_code
def info(
    name: Name,
    data_dir: DataDir = None,
    skip_bad: SkipBad = False,
    picture: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE.png",
            help="Draw ten images of each class into this PNG file.",
            show_default=False,
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Describe a data set on disk: splits, classes, mean, std, hash.

    \b
    Example:
      vitcli data info scenes
    """
    from vitcli.runner.data.contact_sheet import require_png, write_contact_sheet
    from vitcli.runner.data.find import check_name, refuse_unused_folder
    from vitcli.runner.data.load import data_status, load_data
    from vitcli.runner.experiment import config as experiment
    from vitcli.runner.experiment import own_code
    from vitcli.runner.experiment.places import on_command_line

    if picture is not None:
        require_png(picture)
    check_name(name, takes_code=True)
    refuse_unused_folder(name, data_dir)
    status = data_status(name, data_dir)
    places = on_command_line({"data.skip_bad": skip_bad}, {"data.skip_bad": "--skip-bad"})
    spec = experiment.check({"data": {"name": name, "skip_bad": skip_bad}}, places)
    data = load_data(spec.data, data_dir=data_dir, offline=True, on_message=say)
    if picture is not None:
        write_contact_sheet(data, picture)
        say(f"wrote {picture}")
    facts = document(status, data)
    if json:
        emit_json(facts | {"picture": picture})
        return
    emit(format_report(status, facts))
    words = ["vitcli", "train", *own_code.options(), "--data", name]
    words += ["--data-dir", str(data_dir)] if data_dir else []
    say(f"next: {shlex.join(words + ['--skip-bad'] * skip_bad)}")


def document(status: "DataStatus", data: "DataSet") -> dict[str, Any]:
    """Return what is known of a data set that was read, as JSON values."""
    from vitcli.runner.data.catalogue import CATALOGUE

    splits = {"train": data.train, "test": data.test}
    return {
        "name": data.name,
        **status_document(status),
        "img_size": list(data.img_size),
        "in_chans": data.in_chans,
        "num_classes": data.num_classes,
        "class_names": list(data.class_names),
        "num_train": len(data.train),
        "num_test": len(data.test),
        "images_per_class": {
            split: images.labels.bincount(minlength=data.num_classes).tolist()
            for split, images in splits.items()
        },
        "mean": list(data.mean),
        "std": list(data.std),
        "data_hash": data.data_hash,
        "note": CATALOGUE[data.name].note if data.name in CATALOGUE else None,
    }


def format_report(status: "DataStatus", facts: dict[str, Any]) -> str:
    height, width = facts["img_size"]
    mean, std = (", ".join(f"{value:.4f}" for value in facts[name]) for name in ("mean", "std"))
    lines = [
        f"name      {facts['name']}",
        f"where     {describe_place(status)}",
        f"images    {facts['num_train']:,} for training, {facts['num_test']:,} for testing",
        f"size      {height}x{width}, {quantity(facts['in_chans'], 'channel')}",
        f"mean      {mean}   (of the training images, pixels from 0 to 1)",
        f"std       {std}",
        f"hash      {facts['data_hash']}",
    ]
    columns = [facts["class_names"], *facts["images_per_class"].values()]
    rows = [[name, f"{train:,}", f"{test:,}"] for name, train, test in zip(*columns, strict=True)]
    lines += ["", table(["class", "train", "test"], rows, numeric=[1, 2])]
    return "\n".join([*lines, *(["", facts["note"]] if facts["note"] else [])])


@commands.command()
@with_code
def check(
    folder: Annotated[
        str,
        typer.Argument(
            metavar="FOLDER",
            help="Folder of pictures, with a folder for each class, or another form of"
            " 'vitcli data ls', such as csv:labels.csv.",
        ),
    ],
    page: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.html",
            help="Write a page with the pictures that are the same or look alike.",
            show_default=False,
        ),
    ] = None,
    leave_out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.csv",
            help="Write the copies into a file for data.corrections, which leaves them out.",
            show_default=False,
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Look for problems of your own pictures before a training.

    It finds damaged files, pictures in two classes, classes without a test picture, and test
    pictures that are copies of training pictures: equal, turned, mirrored, resized, cut or saved
    again. If there are some, the exit code is 6.

    \b
    Example:
      vitcli data check pictures --page check.html --leave-out copies.csv
    """
    from vitcli.runner import files
    from vitcli.runner.data import check as checked
    from vitcli.runner.data.find import check_name
    from vitcli.runner.data.listing import own_path
    from vitcli.runner.data.load import list_pictures
    from vitcli.runner.errors import CheckError

    for path in filter(None, (page, leave_out)):
        files.require_folder(path)
    checked.refuse_other_files(page, leave_out)
    if not Path(folder).is_dir() and (":" in folder or Path(folder).is_file()):
        check_name(folder, takes_code=True)
    name = folder if own_path(folder) else f"imagefolder:{folder}"
    found = checked.check_folder(list_pictures(name), say)
    if page is not None:
        with files.errors_name(page):
            files.commit(page, checked.page(found).encode())
    if leave_out is not None and found.left_out:
        with files.errors_name(leave_out):
            files.commit(leave_out, checked.corrections(found).encode())
    if json:
        emit_json(checked.document(found) | {"page": page})
    else:
        emit(format_check(found))
    if page is not None:
        say(f"page   {page}")
    following = f"next   {command_after(folder, found, leave_out)}"
    if found.num_problems:
        hint = "" if page else "; --page check.html shows the pictures"
        raise CheckError(f"{folder}: {quantity(found.num_problems, 'problem')}{hint}\n{following}")
    say(following)


def command_after(folder: str, found: "FolderCheck", leave_out: Path | None) -> str:
    """Return the command that trains without the problems, or first writes the copies down."""
    from vitcli.runner.data.listing import own_path
    from vitcli.runner.experiment import own_code
    from vitcli.runner.experiment.config import typed_changes

    code = own_code.options()
    if found.left_out and leave_out is None:
        words = ["vitcli", "data", "check", *code, folder, "--leave-out", "copies.csv"]
        return shlex.join(words)
    name = folder if own_path(folder) else f"imagefolder:{folder}"
    words = ["vitcli", "train", "finetune", *code, "--data", name]
    words += ["--skip-bad"] if found.unreadable else []
    words += typed_changes({"data.corrections": str(leave_out)}) if found.left_out else []
    words += ["--allow-leaks"] if found.leaks else []
    return shlex.join(words)


def format_check(found: "FolderCheck") -> str:
    """Return the outcome of ``data check`` as text."""
    from vitcli.runner.data.check import GROUPS
    from vitcli.runner.data.picture_reader import kept_area
    from vitcli.runner.experiment.config import load_experiment

    rows = [[name, f"{train:,}", f"{test:,}"] for name, train, test in found.counts()]
    sizes = sorted(found.sizes, key=lambda size: size[0] * size[1])
    read_at = load_experiment("finetune").spec.data.resize or found.img_size
    first, last, read = (f"{w}x{h}" for h, w in (sizes[0], sizes[-1], read_at))
    between = first if first == last else f"{first} to {last}"
    groups = {"Pictures that cannot be read": found.unreadable}
    groups |= {"Classes without test pictures": found.untested} if found.untested else {}
    alike = [f"{a!r} and {b!r}" for a, b in found.names_alike]
    groups |= {"Classes whose names look alike": alike} if alike else {}
    groups |= {
        GROUPS[name]: [f"{a}{', ' if name == 'groups' else ' = '}{b}" for a, b in pairs]
        for name, pairs in found.pairs.items()
    }
    test = "test" if found.folder.num_test is not None else "held out"
    lines = [table(["class", "train", test], rows, numeric=[1, 2]), ""]
    kept = kept_area(found.sizes, read_at)
    lines.append(
        f"Width x height: {between}. finetune reads {read} and keeps {percent(kept, 0)} of the area"
        f"{'; --fit pad keeps all' if kept < 1 else ''}."
    )
    for title, entries in groups.items():
        lines.append(f"{title}: {len(entries):,}")
        lines += [listed(entries, NUM_LISTED)] if entries else []
    if stay := {name for name, _ in found.pairs["near"]} - {*found.left_out}:
        why = "they look like a picture of another class, or too few would be left"
        lines.append(f"{len(stay):,} of the test pictures that look alike stay in any case: {why}.")
    if not found.is_compared:
        lines.append("There are too many pictures to search for those that look alike.")
    return "\n".join(lines)


@commands.command()
def get(
    name: Name,
    source: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="URL|PATH",
            help="URL or path to fetch the data set from.",
            show_default="published URLs",
        ),
    ] = None,
    offline: Offline = False,
    json: Json = False,
) -> None:
    """Download or copy a data set into the cache, and decode it.

    \b
    Example:
      vitcli data get cifar10
    """
    from vitcli.runner.data.get import get_data
    from vitcli.runner.data.load import data_status

    get_data(name, source, offline=offline, on_message=say)
    status = data_status(name)
    if json:
        emit_json({"name": status.name, **status_document(status)})
        return
    emit(f"{status.name}  {describe_place(status)}")
    say(f"next: vitcli data info {name}, vitcli train --data {name}")


@commands.command()
def rm(name: Name, yes: Yes = False, json: Json = False) -> None:
    """Remove the files of a data set from the cache.

    They are its downloads and its decoded copies. Your own pictures, and files outside the cache,
    stay.

    \b
    Example:
      vitcli data rm cifar10
    """
    from vitcli.runner.data.cache import files_in_cache
    from vitcli.runner.data.find import check_name, explain_write_errors

    check_name(name)
    files = files_in_cache(name)
    size = sum(path.stat().st_size for path in files)
    if not files:
        say(f"the cache holds nothing of {name}")
    elif not yes and not confirmed(
        "data rm", [f"{quantity(len(files), 'file')} of {name} in the cache, {size / 1e6:,.0f} MB"]
    ):
        say("nothing was removed")
        return
    for path in files:
        with explain_write_errors(path.parent):
            path.unlink(missing_ok=True)
    if json:
        emit_json({"name": name, "removed": [str(path) for path in files], "bytes": size})
    elif files:
        emit(f"removed {quantity(len(files), 'file')} of {name}, {size / 1e6:,.0f} MB")
