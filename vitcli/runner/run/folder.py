"""The run folder: plain files that survive being copied. Its status.json is the contract."""

import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, get_args

import filelock

from vitcli.core.spec import ExperimentSpec
from vitcli.runner.errors import ConfigError, InputError, InUseError
from vitcli.runner.experiment.config import check, config_hash, config_text
from vitcli.runner.experiment.yaml_text import read_mapping
from vitcli.runner.files import commit, commit_json, make_folder, sha256
from vitcli.version import PACKAGE

RUNS = Path("runs")
BUNDLED = PACKAGE / "pretrained"
"""Trained models that come with vitcli: run folders of weights and records, never written to."""
PLAIN = Path("train/seed0")
"""The run of an experiment as it is written."""
FILES = (
    "status.json",
    "result.json",
    "metrics.jsonl",
    "meta.json",
    "predictions.npz",
    "config.yaml",
)
"""In the order in which they are removed: what makes the folder a run goes last."""
MANIFEST = "manifest.json"
"""Written last into a checkpoint's folder; without it there is no checkpoint."""
State = Literal["running", "interrupted", "finished", "diverged", "failed"]


class RunDir:
    """Paths and records of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"

    @property
    def exists(self) -> bool:
        return (self.path / "config.yaml").is_file()

    @property
    def name(self) -> str:
        """Relative to runs/ where it lies there; a packaged model's own name."""
        path = self.path.resolve()
        for folder in (RUNS.resolve(), BUNDLED.resolve()):
            if folder in path.parents:
                return str(path.relative_to(folder))
        return str(self.path)

    @property
    def is_bundled(self) -> bool:
        return BUNDLED.resolve() in self.path.resolve().parents

    def require_own(self) -> None:
        """
        Raises:
            ConfigError: It is a packaged model, which is only read.
        """
        if self.is_bundled:
            raise ConfigError(f"{self.name} comes with vitcli and is only read")

    def create(self, spec: ExperimentSpec) -> None:
        """Write the configuration; half-written files of a killed process are removed."""
        make_folder(self.checkpoints)
        for path in temporaries(self.path):
            path.unlink(missing_ok=True)
        commit(self.path / "config.yaml", config_text(spec).encode())

    def config_sha256(self) -> str:
        """Of config.yaml as it lies there: a cut one may still be a valid configuration."""
        return sha256((self.path / "config.yaml").read_bytes())

    def last_step(self) -> int:
        """The step of the newest checkpoint; 0 where there is none."""
        return max(steps(self.checkpoints), default=0)

    def spec(self) -> ExperimentSpec:
        document = read_mapping(self.path / "config.yaml")
        return check(document.data, document, is_stored=True)

    def status(self) -> dict[str, Any]:
        """``state``, ``step``, ``reason``; an unreadable file counts as failed."""
        status = self.read("status.json")
        if status.get("state") in get_args(State) and isinstance(status.get("step"), int):
            return {"reason": "", **status}
        return {"state": "failed", "step": 0, "reason": "unknown"}

    def set_status(self, state: State, step: int, reason: str = "") -> None:
        commit_json(self.path / "status.json", {"state": state, "step": step, "reason": reason})

    def read(self, name: str) -> dict[str, Any]:
        """A JSON file of the folder; {} where it is missing or damaged."""
        try:
            text = (self.path / name).read_text()
            value = _strict_json(text)
        except (OSError, ValueError, RecursionError):
            return {}
        return value if isinstance(value, dict) else {}

    def metrics(self) -> list[dict[str, Any]]:
        """The records of metrics.jsonl; a torn last line is dropped.

        Raises:
            InputError: Another line is no record.
        """
        path = self.path / "metrics.jsonl"
        try:
            return parse_metrics(path.read_text(), path)
        except FileNotFoundError:
            return []
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{path}: cannot be read: {error}") from error

    def set_metrics(self, records: list[dict[str, Any]]) -> None:
        text = "".join(json.dumps(record, allow_nan=False) + "\n" for record in records)
        commit(self.path / "metrics.jsonl", text.encode())

    @contextmanager
    def lock(self, timeout: float = 0.5) -> Iterator[None]:
        """Hold the folder; a second process is refused."""
        with exclusive(self.path, "another process is using this run", timeout):
            yield


def parse_metrics(text: str, path: Path) -> list[dict[str, Any]]:
    """The records of a metrics.jsonl; a torn last line is dropped.

    Raises:
        InputError: Another line is no record.
    """
    records = []
    for number, line in enumerate(text.split("\n")[:-1], start=1):
        try:
            record = _strict_json(line)
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict) or type(record.get("step")) is not int:
            raise InputError(f"{path}:{number}: not a record")
        records.append(record)
    return records


@contextmanager
def exclusive(folder: Path, refusal: str, timeout: float = 0.5) -> Iterator[None]:
    """Hold a folder, which is made where it is missing.

    Half a second is waited for who only looks whether it is held.

    Raises:
        InUseError: Another process holds it.
    """
    make_folder(folder)
    lock = filelock.FileLock(folder / ".lock", timeout=timeout)
    try:
        lock.acquire()
    except filelock.Timeout as error:
        raise InUseError(f"{folder}: {refusal}") from error
    try:
        yield
    finally:
        lock.release()


def temporaries(run: Path) -> list[Path]:
    """Files that ``commit`` was about to put in place when its process was killed."""
    tensors = ("manifest.json", "tensors.safetensors", "weights.safetensors")
    found = [path for name in FILES for path in run.glob(f".{name}.*")]
    return found + [path for n in tensors for path in run.glob(f"checkpoints/*/.{n}.*")]


def steps(checkpoints: Path) -> list[int]:
    """The steps of a run's checkpoints, newest first."""
    names = [path.parent.name for path in checkpoints.glob(f"*/{MANIFEST}")]
    return sorted((int(name) for name in names if name.isdecimal()), reverse=True)


def _strict_json(text: str) -> Any:
    """Without NaN and infinity, which are no JSON, however they are written (such as 1e999)."""
    return json.loads(text, parse_constant=_finite, parse_float=_finite)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is no number")
    return value


def default_path(name: str, spec: ExperimentSpec, changed: bool) -> Path:
    """runs/<experiment>/train/seed<k>, with ``train-<hash8>`` for a changed experiment."""
    if name.startswith("."):
        raise ConfigError(f"an experiment cannot be called {name!r}; rename its file")
    variant = f"train-{config_hash(spec)[:8]}" if changed else "train"
    return RUNS / name / variant / f"seed{spec.seed}"


def list_runs(folder: Path = RUNS) -> list[RunDir]:
    """Every run below a folder, oldest first by the time its status was last written."""
    found = [RunDir(path.parent) for path in folder.rglob("config.yaml")]
    return sorted(found, key=lambda run: (_changed_at(run), str(run.path)))


def _changed_at(run: RunDir) -> float:
    try:
        return os.stat(run.path / "status.json").st_mtime
    except OSError:
        return 0.0


def find_run(text: str) -> RunDir:
    """A run by folder, by name under runs/, or the packaged model of that name.

    An experiment's name stands for its only run, or for the unchanged one of seed 0.
    """
    if not text:
        raise ConfigError("the name of a run is empty; is a shell variable unset?")
    for folder in (Path(text), RUNS / text):
        if (folder / "config.yaml").is_file():
            return RunDir(folder)
        if folder.is_dir() and (inside := list_runs(folder)):
            if len(inside) == 1:
                return inside[0]
            if (folder / PLAIN / "config.yaml").is_file():
                return RunDir(folder / PLAIN)
            names = ", ".join(run.name for run in inside[:6])
            raise ConfigError(f"{text} holds {len(inside)} runs; name one of them: {names}")
    if text in bundled_models():
        return RunDir(BUNDLED / text)
    if Path(text).is_dir():
        raise InputError(f"{text}: not a run folder (no config.yaml)")
    raise InputError(f"no run is called {text!r} ('vitcli runs ls' lists them)")


def bundled_models() -> list[str]:
    """The names of the models that come with vitcli."""
    return sorted(path.parent.name for path in BUNDLED.glob("*/config.yaml"))
