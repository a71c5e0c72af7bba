"""The kinds of experiment files: a study, and what plugins add. One field decides the kind."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitcli.plugin import Registry, Target, missing_for
from vitcli.runner.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class FileKind:
    """A file that is more than an experiment."""

    name: str
    command: str
    """Command of vitcli that trains it."""
    fields: Target
    """Class of the fields that an experiment does not have."""
    check: Target
    """Takes a name or path; returns the base's number of parameters and what the file holds."""
    files: Callable[[Mapping[str, Any]], tuple[str, ...]] = lambda plan: ()
    """Takes the plan of a folder; returns the files there that a study does not have."""


FILE_KINDS = Registry[FileKind]("file")
"""Field that makes a file of a kind -> the kind."""
FILE_KINDS |= {
    "variants": FileKind(
        name="study",
        command="ablate",
        fields="vitcli.runner.study.definition:StudyFields",
        check="vitcli.runner.study.validate:check_study",
    )
}


def kind_of(fields: Mapping[str, Any], path: Path) -> FileKind | None:
    """Return the kind of a file by its fields and those of its bases; None for an experiment."""
    for field in fields:
        if missing := missing_for(FILE_KINDS.field, field) or missing_for(field, fields[field]):
            raise ConfigError(f"{path}: {field}: {missing}")
    return next((FILE_KINDS[field] for field in FILE_KINDS if field in fields), None)
