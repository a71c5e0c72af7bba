"""The places where the fields of an experiment are written: lines of files and options."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vitcli.runner.experiment.yaml_text import Document, FieldPath

SET = "--set"
Source = Mapping[str, str]
"""Dotted field -> the place where a file or a command line sets it."""


@dataclass(frozen=True)
class Places:
    """The sources of an experiment, the one with the highest precedence first."""

    sources: Sequence[Source]
    otherwise: str
    """Place of a problem that no field explains."""

    def where(self, path: FieldPath) -> str:
        """Return the place of a field, or of the nearest field that contains it.

        A source with a field inside the wrong field counts too: ``--set model.num_heads=5`` is the
        place of a problem of ``model``.
        """
        for length in range(len(path), 0, -1):
            field = ".".join(map(str, path[:length]))
            for source in self.sources:
                inside = (place for name, place in source.items() if name.startswith(f"{field}."))
                if place := source.get(field) or next(inside, None):
                    return place
        return self.otherwise

    def below(self, group: str, label: str = "") -> Source:
        """Return the places of the fields inside ``group``, with a label behind each place."""
        prefix = f"{group}."
        return {
            name.removeprefix(prefix): f"{place}{label}"
            for source in reversed(self.sources)
            for name, place in source.items()
            if name.startswith(prefix)
        }


Place = Places | Document
"""What knows where a field is written."""


def in_files(documents: Sequence[Document]) -> Places:
    """Return the places of fields in a file and its bases, the file first."""
    sources = [
        {".".join(map(str, path)): document.where(path) for path in document.lines if path}
        for document in documents
    ]
    return Places(sources, documents[0].where(()))


def on_command_line(changes: Mapping[str, Any], options: Mapping[str, str]) -> Places:
    """Return the places of the fields that a command line changes.

    ``options`` names the option that set a field, such as ``--epochs``; ``--set`` if absent.
    """
    typed = {field: options.get(field, SET) for field in changes}
    return Places([typed], " and ".join(dict.fromkeys(typed.values())))


def is_typed(place: str) -> bool:
    return place.startswith("--")
