"""The formats of ``vitcli runs export``."""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from vitcli.runner.errors import ConfigError
from vitcli.runner.trackers.csv_files import write_csv
from vitcli.runner.trackers.exported import ExportedRun
from vitcli.runner.trackers.mlflow_store import write_mlflow
from vitcli.runner.trackers.trackio_store import write_trackio


@dataclass(frozen=True, kw_only=True)
class Format:
    """A format: how it is written, and what it needs."""

    write: Callable[[Sequence[ExportedRun], Path], list[Path]]
    """Writes runs into a folder; returns the written files."""
    extra: str | None = None
    """The package, and the extra of vitcli, that the format needs."""
    next_command: Callable[[Path], str] | None = None
    """Returns the command that shows the written folder."""

    def check(self, folder: Path) -> None:
        """Check, before any run is read, that the format can be written into a folder.

        Raises:
            ConfigError: The package is missing, or the folder of a store is not empty.
        """
        if self.extra is None:
            return
        if find_spec(self.extra) is None:
            raise ConfigError(
                f"--to {self.extra} needs the package {self.extra}; type: pip install {self.extra}"
            )
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigError(f"-o {folder} exists already and is not empty; choose another folder")


FORMATS = {
    "csv": Format(write=write_csv),
    "mlflow": Format(
        write=write_mlflow,
        extra="mlflow",
        next_command=lambda folder: shlex.join(
            ["mlflow", "ui", "--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}"]
        ),
    ),
    "trackio": Format(
        write=write_trackio,
        extra="trackio",
        next_command=lambda folder: f"TRACKIO_DIR={shlex.quote(str(folder))} trackio show",
    ),
}
"""Name -> format, as ``--to`` takes it."""
