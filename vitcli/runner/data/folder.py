"""Which files of a folder are pictures, of which class, and for testing or not; none is decoded."""

import mimetypes
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path

from vitcli.runner.data.extras import kind_of
from vitcli.runner.data.labels import refuse_names, stripped
from vitcli.runner.data.listing import SPLITS, PictureFolder
from vitcli.runner.data.pictures import software_of
from vitcli.runner.errors import InputError
from vitcli.runner.text import (
    Listener,
    composed,
    did_you_mean,
    ignore_message,
    natural_key,
    printable,
    quantity,
)

JUNK = ("thumbs.db", "thumbs.db:encryptable", "ehthumbs.db", "desktop.ini", "icon\r")
"""Files that file managers write, in lower case."""
SIDE_FOLDERS = (
    *("@eadir", "#recycle", "#snapshot", "@recycle", "@recently-snapshot", "@__thumb"),
    *("$recycle.bin", "system volume information", "__macosx", "lost+found"),
)
"""Folders that network storage and computers add, in lower case; also ``BUNDLES`` and hidden ones.
"""
MOST_KINDS = 8
"""Number of suffixes that a note names."""
BUNDLES = (".lrdata", ".lrlibrary", ".photoslibrary", ".photolibrary", ".aplibrary")
"""Suffixes of folders in which programs keep previews."""
TYPES = mimetypes.MimeTypes()
"""The types of suffixes that Python knows by itself, the same on each machine."""
OTHERS = (
    *(".npy", ".npz", ".pt", ".pth", ".safetensors"),
    *(".svg", ".yaml", ".yml", ".jsonl", ".log", ".ini", ".db", ".lnk", ".url", ".gpx", ".roi"),
    *(".aae", ".xmp", ".thm", ".lrv", ".mts", ".m2ts", ".m4v", ".3gp", ".insv", ".mp", ".mp~2"),
    *(".lrcat", ".dop", ".pp3", ".cos", ".cop", ".cot", ".on1", ".nksc", ".arp", ".ithmb"),
    *(".jgw", ".pgw", ".tfw", ".wld", ".prj", ".ovr", ".shp", ".shx", ".dbf", ".cpg", ".gpkg"),
    *(".xlsx", ".xlsm", ".docx", ".pptx", ".ods", ".odt", ".numbers"),
)
"""Suffixes of no picture with pixels that ``TYPES`` lacks or calls pictures: data, and files that
phones, cameras, editors, maps and offices leave beside pictures."""
EVENTS = "events.out.tfevents"
"""Beginning of TensorBoard's files, whose suffix is the name of a computer."""
SOFTWARE = "vitcli attn-map"
TRAIN, TEST, VAL = SPLITS["train"], SPLITS["test"], ("val", "valid", "validation")
HELD_OUT = (*TEST, *VAL)
"""Names of the test set, the preferred ones first; capital letters do not matter."""
LIKE_SPLITS = [
    re.compile(rf"(^|[\W_])({words})", re.IGNORECASE)
    for words in (r"train(ing\w*)?(?![a-z])", r"(test(ing)?|valid(ation|ierung)?|val)(?![a-z])")
]
"""What is in names such as ``seg_train`` and ``test_set``, of folders with class folders."""
EXPECTED = "expected: PATH/train/<class>/*, PATH/test/<class>/* (or val), or PATH/<class>/*"


def list_folder(root: Path, class_names: tuple[str, ...] | None = None) -> PictureFolder:
    """List the pictures in a folder; the classes are by default the sorted class folders."""
    if not root.is_dir():
        moved = "if the pictures of a run have moved, give their folder with --data-dir"
        raise InputError(f"{printable(root)} is not a folder; {moved}; {EXPECTED}")
    try:
        return _list_folder(root, class_names)
    except OSError as error:
        where = printable(error.filename or root)
        raise InputError(f"{where} cannot be listed: {error.strerror}") from error


def _list_folder(root: Path, class_names: tuple[str, ...] | None) -> PictureFolder:
    train_at, test_at, val_at, notes = _find_splits(root)
    train = _classes(train_at, notes)
    names = class_names or tuple(sorted(train))
    if len(train) < 2:
        found = f"only {printable(*train)!r}" if train else "none"
        needed = f"{printable(train_at)} needs a folder of pictures for each class, and has {found}"
        raise InputError("; ".join([needed, *notes, EXPECTED]))
    test = _test_classes(test_at, names, notes) if test_at else {}
    val = _val_classes(val_at, names, notes) if val_at else {}
    if strange := sorted({*test, *train} - {*names}):
        known = "is not a class of this data set" if class_names else "has no pictures in train"
        what = f"{printable(strange[0])!r} {known}{did_you_mean(strange[0], names)}"
        raise InputError(f"{printable(root)}: {what}")
    pairs = [
        (path, label)
        for classes in (train, test, val)
        for label, name in enumerate(names)
        for path in classes.get(name, [])
    ]
    paths = [path for path, _ in pairs]
    folders = {str(root), str(train_at), str(test_at or root), *map(os.path.dirname, paths)}
    folders |= {str(val_at)} if val else set()
    extras = sorted(path for folder in folders for path in _files(folder, kind_of))
    if ignored := describe_others(name for folder in folders for name in os.listdir(folder)):
        notes.append(f"{printable(root)}: {ignored}")
    return PictureFolder(
        root=root,
        class_names=names,
        paths=paths,
        labels=[label for _, label in pairs],
        num_train=sum(map(len, train.values())),
        num_test=sum(map(len, test.values())) if test_at else None,
        num_val=sum(map(len, val.values())),
        extra_files=tuple(extras),
        notes=tuple(notes),
    )


# Training and test set


Splits = tuple[Path, Path | None, Path | None, list[str]]
"""Folders of the training, test and validation set, and notes."""


def _find_splits(root: Path) -> Splits:
    """Return the folders whose folders are the classes, and notes.

    A folder named like a split is a split if it has class folders. It is a class if it has pictures
    itself and other classes are beside it.
    """
    folders = _folders(root, (*TRAIN, *HELD_OUT))
    train, held_out = _named(folders, TRAIN), _named(folders, HELD_OUT)
    others = [folder for folder in folders if folder not in (*train, *held_out)]
    if sorted_by_class := [folder for folder in train if _has_classes(folder)]:
        return _by_split([*dict.fromkeys(sorted_by_class + train)], held_out, others)
    has_classes = any(map(_has_pictures, others))
    if train and not (has_classes and _has_pictures(train[0])):
        return _by_split(train, held_out, others)
    apart = [f for f in held_out if not has_classes or (_has_classes(f) and not _has_pictures(f))]
    if apart:
        missing = printable(root / "train")
        raise InputError(f"{printable(apart[0])} exists but {missing} does not; {EXPECTED}")
    classes = [folder for folder in (*train, *held_out) if _has_pictures(folder)]
    beside = "is read as a class, like the folders beside it"
    return root, None, None, [f"{printable(folder)} {beside}" for folder in classes]


def _by_split(train: Sequence[Path], held_out: Sequence[Path], others: Sequence[Path]) -> Splits:
    test, notes = (held_out[0] if held_out else None), []
    val = next(iter(_named(held_out, VAL)), None)
    val = None if test is None or test == val else val
    if test and test.name.casefold() != "test":
        notes.append(f"{printable(test)} is the test set")
    if test:
        is_test = f"is not used: {printable(test)} is the test set"
        notes += [f"{printable(folder)} {is_test}" for folder in held_out[1:] if folder != val]
    for folder in (*train[1:], *others):
        with suppress(OSError, InputError):  # it is no part of the data set
            if _has_pictures(folder) or _has_classes(folder):
                is_train = f"{printable(train[0])} is the training set"
                notes.append(f"{printable(folder)} is not used: {is_train}")
    if loose := len(_files(str(train[0].parent), _is_image)):
        where = printable(train[0].parent)
        notes.append(f"{where}: ignored {quantity(loose, 'picture')} beside {train[0].name}")
    return train[0], test, val, notes


def _named(folders: Sequence[Path], names: Sequence[str]) -> list[Path]:
    matching = [folder for folder in folders if folder.name.casefold() in names]
    return sorted(matching, key=lambda folder: names.index(folder.name.casefold()))


def _has_classes(folder: Path) -> bool:
    classes = _folders(folder)
    return any(map(_has_pictures, classes)) or any(map(_pictures_of, classes))


def _has_pictures(folder: Path) -> bool:
    return bool(_files(str(folder), _is_image))


# Classes and their files


def _classes(folder: Path, notes: list[str]) -> dict[str, list[str]]:
    classes: dict[str, list[str]] = {}
    forms: dict[str, Path] = {}
    for inner in _folders(folder):
        name = stripped(inner.name)
        if (other := forms.setdefault(composed(name), inner)) != inner:
            raise InputError(
                f"{printable(inner)} and {other.name!a} are one name in two forms, of Unicode or of"
                " blanks around it; move the pictures into one of the folders, or rename one"
            )
        classes[name] = _pictures_of(inner)
        if not classes[name]:
            what = "folders but no pictures" if _folders(inner) else "no pictures"
            notes.append(f"{printable(inner)} has {what} and is skipped")
        if name != inner.name and classes[name]:
            notes.append(f"note: removed the blanks around the class {inner.name!a}")
    if loose := len(_files(str(folder), _is_image)):
        what = "beside the class folders" if any(classes.values()) else "without a class folder"
        notes.append(f"{printable(folder)}: ignored {quantity(loose, 'picture')} {what}")
    classes = {name: files for name, files in classes.items() if files}
    places = [os.path.relpath(path, folder).split(os.sep) for path in chain(*classes.values())]
    if inside := Counter(os.path.join(*parts[:2]) for parts in places if len(parts) > 2):
        outer = {parts[0] for parts in places} - {parts[0] for parts in places if len(parts) == 2}
        like = [next(filter(kind.search, sorted(outer)), "") for kind in LIKE_SPLITS]
        if all(like):
            raise InputError(
                f"{printable(folder)}: {printable(' and '.join(like))} look like splits, not"
                f" classes; name them train and test; {EXPECTED}"
            )
        if split := [name for name in inside if Path(name).name.casefold() in (*TRAIN, *HELD_OUT)]:
            raise InputError(
                f"{printable(folder / split[0])} looks like a split inside a class; {EXPECTED}"
            )
        most = ", ".join(f"{printable(name)} ({n:,})" for name, n in inside.most_common(3))
        notes.append(
            f"{printable(folder)}: {quantity(inside.total(), 'picture')} in sub-folders of a class"
            f" belong to the class: {most}{', ...' if len(inside) > 3 else ''}"
        )
    try:
        refuse_names([*classes])
    except ValueError as error:
        raise InputError(f"{printable(folder)}: {error}") from error
    return classes


def _test_classes(folder: Path, names: Sequence[str], notes: list[str]) -> dict[str, list[str]]:
    test_notes: list[str] = []
    if test := _classes(folder, test_notes):
        notes += test_notes
        forms = {composed(name): name for name in names}
        return {forms.get(composed(name), name): files for name, files in test.items()}
    where = printable(folder)
    advice = f"sort its pictures into {where}/<class>/, or move {where} to another place"
    raise InputError("; ".join([f"{where} has no pictures of a class", *test_notes, advice]))


def _val_classes(folder: Path, names: Sequence[str], notes: list[str]) -> dict[str, list[str]]:
    try:
        val = _test_classes(folder, names, notes)
    except InputError as error:
        notes.append(f"not used: {error}")
        return {}
    if strange := sorted({*val} - {*names}):
        notes.append(f"{printable(folder)} is not used: {strange[0]!r} has no pictures in train")
        return {}
    return val


def _pictures_of(folder: Path) -> list[str]:
    return sorted(
        path for path in pictures_inside(folder)[0] if not kind_of(os.path.basename(path))
    )


def _is_image(name: str) -> bool:
    return is_picture(name) and not kind_of(name)


def _folders(folder: Path, names: Collection[str] = ()) -> list[Path]:
    entries = _visible(folder)
    for entry in entries:
        is_meant = not names or entry.name.casefold() in names
        if is_meant and entry.is_symlink() and not os.path.exists(entry.path):
            raise InputError(f"{printable(entry.path)}: the link leads nowhere; mend or remove it")
    return [Path(entry.path) for entry in entries if entry.is_dir()]


def _files(folder: str, is_wanted: Callable[[str], object]) -> list[str]:
    return [e.path for e in _visible(folder) if is_wanted(e.name) and not e.is_dir()]


def _visible(folder: Path | str) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        kept = (e for e in entries if not e.name.startswith("."))
        kept = (e for e in kept if not (is_side_folder(e.name) and e.is_dir()))
        return sorted(kept, key=lambda e: e.path)


# Pictures that a user names, alone or by their folder


def picture_files(names: Sequence[str], on_message: Listener = ignore_message) -> list[str]:
    """Return files by name, and the pictures in folders and in the folders inside them.

    The pictures of a folder are in natural order: ``2.jpg`` before ``10.jpg``. Hidden and side
    folders are skipped, and so are figures of ``attn-map``; the PNG file tells its origin. A figure
    that is named itself is not skipped.
    """
    chosen: list[str] = []
    for name in names:
        if not name:
            raise InputError("the name of a picture is empty; is a shell variable unset?")
        folder = Path(name)
        if name == "-" or not folder.is_dir():
            chosen.append(name)
            continue
        inside, contents = pictures_inside(folder)
        pictures = [file for file in inside if software_of(file) != SOFTWARE]
        num_figures = len(inside) - len(pictures)
        figures = f"{quantity(num_figures, 'figure')} of attn-map"
        if not pictures:
            only = f", only {figures}" if num_figures else ""
            raise InputError(f"{name}: no picture in this folder{only}")
        if num_figures:
            on_message(f"{name}: skipped {figures}")
        if ignored := describe_others(contents):
            on_message(f"{name}: {ignored}")
        chosen += pictures
    return chosen


def pictures_inside(folder: Path) -> tuple[list[str], list[str]]:
    """Return the pictures in a folder and the folders inside it, and the names in all of them.

    Hidden folders and side folders are not entered, nor links to a folder around this one.
    """
    pictures: list[Path] = []
    names: list[str] = []
    seen = {*map(os.path.realpath, folder.absolute().parents)}
    for place, folders, files in os.walk(folder, onerror=_refuse, followlinks=True):
        real = os.path.realpath(place)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        names += folders + files
        folders[:] = sorted(name for name in folders if not is_side_folder(name))
        pictures += [Path(place, name) for name in files if is_picture(name)]
    pictures.sort(key=lambda path: [natural_key(part) for part in path.parts])
    return [str(path) for path in pictures], names


def is_side_folder(name: str) -> bool:
    return name.startswith(".") or name.lower() in SIDE_FOLDERS or name.lower().endswith(BUNDLES)


def describe_others(names: Iterable[str]) -> str:
    """Return how many of which suffix are no pictures; hidden and system files do not count."""
    kinds = sorted(
        printable(name if is_side_folder(name) else Path(name).suffix.lower())
        for name in names
        if is_side_folder(name) or not (is_picture(name) or kind_of(name))
        if not (name.startswith(".") or name.lower() in JUNK)
    )
    counts = Counter(kinds).most_common()
    shown = [f"{count:,} {kind}" for kind, count in counts[:MOST_KINDS]]
    shown += ["..."] * (len(counts) > MOST_KINDS)
    return f"ignored what is no picture: {', '.join(shown)}" if kinds else ""


def is_picture(name: str) -> bool:
    """Return whether a file of a folder is read as a picture, by its name.

    A file without a suffix, or with a suffix of no known type, is read. So a picture under a wrong
    or rare name is refused with a reason, and not left out.
    """
    if name.startswith((".", EVENTS)) or name.lower() in JUNK or name.lower().endswith(OTHERS):
        return False
    kind, packed = TYPES.guess_type(f"/{name}")
    return packed is None and (kind is None or kind.startswith("image/"))


def _refuse(error: OSError) -> None:
    raise InputError(f"{error.filename}: cannot be listed: {error.strerror}") from error
