"""Stores of other libraries are written by a process of its own.

These libraries read their folders from the environment when they are imported, log to the console,
and keep files open. A process of its own leaves nothing of this behind.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vitcli.runner.errors import ResourceError, UserError
from vitcli.runner.files import make_output_folder
from vitcli.runner.text import one_line
from vitcli.runner.trackers.exported import ExportedRun

OFFLINE = {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "true", "MLFLOW_DISABLE_TELEMETRY": "true"}
"""Variables that keep the libraries from using the network."""
REMOTE = ("MLFLOW_", "TRACKIO_", "SPACE_", "HF_", "SYSTEM")
"""Beginnings of the variables that name a server or a space. The process does not get them."""


def write_store(
    module: str, runs: Sequence[ExportedRun], folder: Path, variables: Mapping[str, str]
) -> list[Path]:
    """Write runs into a new folder with a module of this package; return the written files.

    The files appear all at once, or none of them does.

    Args:
        module: Its ``main`` reads the payload of ``read_payload`` and writes into its folder.
        runs: At least one.
        folder: It is missing or empty.
        variables: Environment variables; ``{}`` in a value is the folder that is written to.

    Raises:
        UserError: The library refused the runs.
        ResourceError: The folder cannot be written to.
    """
    make_output_folder(folder)
    place = Path(tempfile.mkdtemp(dir=folder, prefix="."))
    try:
        own = {name: value.format(place) for name, value in variables.items()}
        _run(module, {"folder": str(place), "runs": [asdict(run) for run in runs]}, own)
        files = sorted(path for path in place.iterdir() if not path.name.endswith(".lock"))
        for path in files:
            os.replace(path, folder / path.name)
    except OSError as error:
        raise ResourceError(f"-o {folder}: cannot be written: {error.strerror}") from error
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return [folder / path.name for path in files]


def _run(module: str, payload: dict[str, Any], variables: dict[str, str]) -> None:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(REMOTE)}
    done = subprocess.run(
        [sys.executable, "-m", f"vitcli.runner.trackers.{module}"],
        input=json.dumps(payload),
        env=kept | OFFLINE | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UserError(f"the store could not be written: {one_line(last, 300)}")


def read_payload() -> tuple[Path, list[dict[str, Any]]]:
    """Return the folder and the runs that the parent process sent, each run as plain data."""
    payload = json.load(sys.stdin)
    return Path(payload["folder"]), payload["runs"]
