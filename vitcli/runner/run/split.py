"""split.json: which of the user's own pictures a run learned from, validated and tested on.

A picture is known by its content (``DataSet.contents``), so it may be renamed and moved.
"""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from vitcli.runner.errors import UserError
from vitcli.runner.experiment.family import split_published
from vitcli.runner.files import read_hashed, to_hashed_json
from vitcli.runner.run.folder import SPLIT, RunDir, find_run

if TYPE_CHECKING:
    from vitcli.core.data.source import DataSet

Sides = Mapping[str, str]
"""Content of a picture -> ``train``, ``val`` or ``test``."""


def split_json(data: "DataSet", learned: Collection[str], kept: Sides) -> bytes:
    """Return the content of split.json: the side of each picture, and the sides that were kept.

    ``learned`` are the contents that the initial weights, or a teacher, learned from. Wherever such
    a picture is now, its side is ``train``.
    """
    parts = {"test": data.test, "val": data.val, "train": data.all_train}
    sides = {
        data.contents[name]: side
        for side, part in parts.items()
        if part is not None
        for name in part.names
    }
    sides |= dict.fromkeys(learned, "train")
    return to_hashed_json({"sides": dict(sorted(sides.items())), "kept": dict(kept)})


def read_sides(run: RunDir, key: str = "sides") -> Sides | None:
    """Return the sides of the pictures of a run, or with ``kept`` those that it kept, if known."""
    values = read_hashed(run.path / SPLIT)
    return None if values is None else dict(values[key])


def labelled_runs(run: RunDir) -> Iterator[RunDir | None]:
    """Yield a run and those that it started from, the latest first, if they learned labels.

    None is the last if an earlier run cannot be read: nobody knows what it learned.
    """
    spec, later = run.spec(), list[Path]()
    while run.path not in later:
        later.append(run.path)
        if spec.task.row.uses_labels:
            yield run
        init = spec.train.init
        if init is None or Path(init).is_file() or split_published(init):
            return
        try:
            run = find_run(init)
            spec = run.spec()
        except UserError:
            yield None
            return


def learned_run(source: RunDir) -> RunDir | None:
    """Return the latest run, of a run and those before it, that says which own pictures it learned.

    It knows those of the runs before it, too.
    """
    return next((r for r in labelled_runs(source) if r and read_sides(r) is not None), None)


def learned_sides(source: RunDir) -> Sides:
    """Return the sides of the own pictures whose labels a run, or one before it, learned."""
    run = learned_run(source)
    return (run and read_sides(run)) or {}
