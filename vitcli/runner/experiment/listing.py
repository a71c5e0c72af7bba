"""Experiment and study files: find them by name, describe them, copy them."""

from dataclasses import dataclass
from pathlib import Path

from vitcli.runner.errors import ConfigError
from vitcli.runner.experiment.config import (
    experiment_files,
    find_experiment,
    resolve_bases,
)
from vitcli.runner.experiment.header import header
from vitcli.runner.experiment.yaml_text import read_mapping
from vitcli.runner.files import commit


@dataclass(frozen=True, kw_only=True)
class ExperimentInfo:
    """An experiment file by name; ``kind`` is experiment, study, or broken."""

    name: str
    kind: str
    question: str
    path: str


def list_experiments() -> list[ExperimentInfo]:
    """Every experiment that can be named, those of the working folder first."""
    return [describe_experiment(str(path)) for path in experiment_files().values()]


def describe_experiment(name: str) -> ExperimentInfo:
    """What a file says about itself, by name or path; one that cannot be read is broken."""
    path = find_experiment(name)
    try:
        kind = "study" if is_study(path) else "experiment"
        question = header(path.read_text()).get("Question", "")
    except ConfigError as error:
        kind, question = "broken", str(error)
    return ExperimentInfo(name=path.stem, kind=kind, question=question, path=str(path))


def is_study(path: Path) -> bool:
    """A study has variants; it may take them from its base."""
    return "variants" in resolve_bases(read_mapping(path), path)


def read_text(name: str) -> str:
    """The file as it is."""
    path = find_experiment(name)
    read_mapping(path)
    return path.read_text()


def copy_experiment(name: str, target: Path | None, *, force: bool = False) -> Path:
    """Copy a file to ``target`` (``.yaml`` is added), into that folder, or here.

    Raises:
        ConfigError: Something is there already, or the copy would not find its base.
    """
    source = find_experiment(name)
    base = read_mapping(source).data.get("base")
    target = target or Path(source.name)
    if target.is_dir():
        target /= source.name
    elif target.suffix not in (".yaml", ".yml"):
        target = target.with_name(f"{target.name}.yaml")
    if target.exists() and not force:
        raise ConfigError(f"{target} is there already; --force replaces it")
    if isinstance(base, str):
        _require_base(base, source, target)
    try:
        commit(target, source.read_bytes())
    except OSError as error:
        raise ConfigError(f"{target}: cannot be written: {error.strerror}") from error
    return target


def _require_base(base: str, source: Path, target: Path) -> None:
    try:
        find_experiment(base, beside=target.parent)
    except ConfigError as error:
        raise ConfigError(
            f"the copy would not find its base {base!r}; copy that from {source.parent} first"
        ) from error
