"""split.json: which of the user's own pictures a run learned from, validated and tested on.

A picture is known by its content, so it may be renamed and moved.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vitcli.runner.errors import InputError
from vitcli.runner.files import read_json, to_hashed_json
from vitcli.runner.run.folder import SPLIT, RunDir

if TYPE_CHECKING:
    from vitcli.core.data.source import DataSet

Sides = Mapping[str, str]
"""Content of a picture -> ``train``, ``val`` or ``test``."""
SIDES = ("test", "val", "train")
"""Of a picture that is in two splits, the last one counts."""
KEPT = "kept_"


@dataclass(frozen=True, kw_only=True)
class RunSplit:
    sides: Sides
    before: frozenset[str] = frozenset()
    """Contents that the weights learned from before this training."""
    kept: Sides = field(default_factory=dict)
    """The sides of earlier runs that this run kept."""

    @property
    def learned(self) -> frozenset[str]:
        return self.before | {content for content, side in self.sides.items() if side == "train"}

    @property
    def to_keep(self) -> Sides:
        """The sides that a training from these weights keeps."""
        return {**self.sides, **dict.fromkeys(self.before, "train")}

    def to_json(self) -> bytes:
        values = {
            f"{start}{side}": [content for content, where in sides.items() if where == side]
            for start, sides in (("", self.sides), (KEPT, self.kept))
            for side in SIDES
        }
        values["before"] = [*self.before]
        return to_hashed_json({name: " ".join(sorted(part)) for name, part in values.items()})


def split_of(data: "DataSet", before: frozenset[str], kept: Sides) -> RunSplit | None:
    """Return the split of own pictures; None for other images."""
    if not data.contents:
        return None
    parts = {"test": data.test, "val": data.val, "train": data.all_train}
    sides = {
        data.contents[name]: side for side in SIDES if (part := parts[side]) for name in part.names
    }
    return RunSplit(sides=sides, before=before, kept=kept)


def read_split(run: RunDir) -> RunSplit | None:
    """Return the split of a run; None if it recorded none.

    Raises:
        InputError: The file is damaged.
    """
    path = run.path / SPLIT
    try:
        texts = {name: str(text).split() for name, text in read_json(path).items()}
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: {error}; restore it, or remove it and train again") from error

    def sides(name: str) -> Sides:
        return {content: side for side in SIDES for content in texts.get(f"{name}{side}", ())}

    return RunSplit(sides=sides(""), before=frozenset(texts.get("before", ())), kept=sides(KEPT))
