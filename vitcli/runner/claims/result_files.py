"""The result files from which verdicts follow."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vitcli.runner.claims.item import Finding
from vitcli.runner.errors import InputError
from vitcli.runner.study.result import StudyResult
from vitcli.runner.study.table import read_document

NOT_RUN = "not run: {}"


class Results:
    """The result files of studies and figures in a folder, each read once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._studies: dict[str, StudyResult | None] = {}

    def study(self, name: str) -> StudyResult | None:
        """Return the result of a study; None if there is no such file.

        Raises:
            InputError: The file is damaged.
        """
        if name not in self._studies:
            path = self.folder / f"{name}.json"
            with whole(path):
                found = read_document(path.read_text()) if path.exists() else None
                if found and not found.rows:
                    raise ValueError("no rows")
            self._studies[name] = found
        return self._studies[name]

    def figures(self, name: str, what: str) -> dict[str, Any] | None:
        """Return the numbers of ``vitcli visualize`` for a run; None if a figure has none.

        Args:
            name: A run.
            what: The figure whose numbers are needed, ``distance`` or ``faithfulness``.

        Raises:
            InputError: The file is damaged.
        """
        path = self.folder / f"visualize-{name}.json"
        if not path.exists():
            return None
        with whole(path):
            found = dict(json.loads(path.read_text()))
            if not found["hardware"] or not found.get("distance", {"claims": True})["claims"]:
                raise ValueError("no numbers")
        return found if what in found else None


@contextmanager
def whole(path: Path) -> Iterator[None]:
    """Turn the errors of a damaged file into one that names the file."""
    try:
        yield
    except (InputError, OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise InputError(f"{path}: damaged; restore it, or delete it") from error


def not_run(reason: str) -> Finding:
    return Finding("no verdict", NOT_RUN.format(reason), "")
