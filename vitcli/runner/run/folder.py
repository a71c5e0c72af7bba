"""The run folder: plain files that can be copied. status.json holds the state of the run."""

import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, get_args

import filelock

from vitcli.core.spec import ExperimentSpec
from vitcli.core.spec.metrics import metric_of
from vitcli.runner.errors import ConfigError, InputError, InUseError
from vitcli.runner.experiment import own_code
from vitcli.runner.experiment.config import check, config_hash, config_text, experiment_files
from vitcli.runner.experiment.yaml_text import MAX_BYTES, read_mapping
from vitcli.runner.files import (
    LOCK,
    commit,
    commit_json,
    errors_name,
    file_lock,
    make_folder,
    parse_strict_json,
    read_bounded,
    read_json,
    require_that_it_stays,
    require_utf8,
    sha256,
    temporary_files_of,
    write_only_while_same,
)
from vitcli.runner.text import did_you_mean, printable, shorten
from vitcli.version import PACKAGE

RUNS = Path(os.environ.get("VITCLI_RUNS") or "runs")
"""The folder of runs and studies."""
BUNDLED = PACKAGE / "pretrained"
"""The folder of the bundled models: run folders that are only read."""
DEFAULT_RUN = Path("train/seed0")
"""The run of an unchanged experiment, below the folder of the experiment."""
FILES = (
    "result.json",
    "status.json",
    "metrics.jsonl",
    "meta.json",
    "predictions.npz",
    "review.html",
    "config.yaml",
)
"""In order of removal: config.yaml, which makes the folder a run, comes last."""
MANIFEST = "manifest.json"
"""Written last into the folder of a checkpoint. A folder without it is not a checkpoint."""
TENSORS = "tensors.safetensors"
CHECKPOINT_FILES = (MANIFEST, TENSORS, "weights.safetensors")
WEIGHTS = (".pt", ".pth", ".bin", ".ckpt", ".safetensors")
"""Suffixes of weights files."""
YAML = (".yaml", ".yml")
MAX_METRICS = 1 << 30
"""Largest size of metrics.jsonl in bytes."""
MAX_ECHO = 100
"""Number of characters that an error repeats of a name that no run has."""
RESULT_TEXTS = ("precision", "kernels", "lost_events", "sha256")
RESULT_COUNTS = ("parameters", "epochs", "steps", "step", "stopped_at", "num_test")
MAX_SECONDS = 1e10
RESULT_COSTS = ("seconds", "per_second", "flops")
REPLACED = "replaced_config_sha256"
"""Entry in meta.json while config.yaml is replaced: the hash that it has until then."""
CHANGED = "it differs from that of the training"
State = Literal["running", "interrupted", "finished", "diverged", "failed"]
RESULT_STATES: tuple[State, ...] = ("finished", "diverged")
"""The states of a run that has a result; such a run is not trained again."""


SEED = re.compile(rb"^seed: (\d{1,9})$", re.MULTILINE)
_parsed_before: dict[tuple[bytes, bytes], ExperimentSpec] = {}
"""What stands before and after the seed in a config.yaml -> its experiment."""


EVENTS = "events.out.tfevents.[0-9]*.*.[0-9]*"
"""TensorBoard's files: time, host and process, which no file of a person has in its name."""


def _refuse_link(path: Path) -> None:
    if path.is_symlink():
        raise InputError(
            f"{path} is a link, and a run writes no file elsewhere; put a copy of"
            f" {printable(os.readlink(path))} in its place"
        )
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise InputError(f"{path}: not a regular file; remove it")


class RunDir:
    """One run: the paths and records in its folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"

    @property
    def exists(self) -> bool:
        return (self.path / "config.yaml").is_file()

    @property
    def name(self) -> str:
        """The path relative to runs/, or the name of a bundled model, or else the whole path."""
        path = self.path.resolve()
        for folder in (RUNS.resolve(), BUNDLED.resolve()):
            if folder in path.parents:
                return str(path.relative_to(folder))
        return str(self.path)

    def command(self, verb: str, data_dir: Path | None = None, device: str = "auto") -> str:
        """Return a command about this run, such as ``vitcli eval quickstart``, ready to be typed.

        Args:
            verb: The command with its options, such as ``train --resume``; the run follows.
            device: The ``--device`` of the run. On another one, it might not continue.
        """
        name = f"./{self.name}" if self.name.startswith("-") else self.name  # it is no option
        words = ["vitcli", *verb.split(), name]
        words += ["--data-dir", str(data_dir)] if data_dir else []
        words += ["--device", device] if device != "auto" else []
        has_code = self.path.joinpath(own_code.FOLDER).is_dir() or not self.exists
        if has_code and not verb.startswith("runs"):
            words += own_code.options()
        return shlex.join(words)

    @property
    def is_bundled(self) -> bool:
        return BUNDLED.resolve() in self.path.resolve().parents

    def require_own(self) -> None:
        """Refuse to change a bundled model."""
        if self.is_bundled:
            raise ConfigError(f"{self.name} is a bundled model and is only read")

    def create(self, spec: ExperimentSpec) -> None:
        """Write config.yaml. Remove the temporary files of a killed process."""
        self.refuse_links()
        make_folder(self.checkpoints)
        for path in temporary_files(self.path):
            path.unlink(missing_ok=True)
        own_code.save_copies(own_code.code_to_keep(spec), self.path)
        commit(self.path / "config.yaml", config_text(spec).encode())

    def refuse_links(self) -> None:
        """Refuse to write where a link leads to files that are not the run's own."""
        code = self.path / own_code.FOLDER
        for path in (self.checkpoints, code, *(self.path / name for name in FILES)):
            _refuse_link(path)
        for path in (*self.checkpoints.glob("*"), *code.rglob("*")):
            _refuse_link(path)
        for path in self.checkpoints.glob("*"):
            for name in CHECKPOINT_FILES:
                _refuse_link(path / name)
        self.refuse_folders()

    def refuse_folders(self) -> None:
        """Refuse a folder in place of a file, before any file is lost."""
        files = [self.path / name for name in FILES]
        files += [
            step / name for step in step_folders(self.checkpoints) for name in CHECKPOINT_FILES
        ]
        for path in files:
            if path.is_dir() and not path.is_symlink():
                raise InputError(
                    f"{path} is a folder, and a run has a file there; move it elsewhere"
                )

    def config_sha256(self) -> str:
        """Return the SHA-256 of config.yaml: a truncated file may still be valid YAML."""
        return sha256(read_bounded(self.path / "config.yaml", MAX_BYTES))

    def has_changed_config(self) -> bool:
        """Return whether config.yaml is not that of the training; old runs do not record it."""
        meta, now = self.read("meta.json"), self.config_sha256()
        return meta.get("config_sha256") not in (None, now) and meta.get(REPLACED) != now

    def trained_spec(self) -> ExperimentSpec:
        """Read config.yaml, and refuse a file that is not that of the training."""
        spec = self.spec()
        if self.has_changed_config():
            raise InputError(f"{self.path / 'config.yaml'}: {CHANGED}")
        return spec

    def last_step(self) -> int:
        """Return the step of the newest checkpoint; 0 if there is none."""
        return max(steps(self.checkpoints), default=0)

    def spec(self) -> ExperimentSpec:
        """Read config.yaml. Of runs that differ in their seeds alone, one is parsed."""
        path = self.path / "config.yaml"
        try:
            parts = SEED.split(read_bounded(path, MAX_BYTES))
        except (OSError, ValueError):  # the parser says why
            parts = []
        if len(parts) != 3:
            return _parsed(path)
        before, seed, after = parts
        spec = _parsed_before.get((before, after)) or _parsed(path)
        if not own_code.unknown_code(spec.code):  # else its parts may be loaded later
            _parsed_before[before, after] = spec
        return spec.model_copy(update={"seed": int(seed)})

    def status(self) -> dict[str, Any]:
        """Return ``state``, ``step`` and ``reason``; an unreadable status.json counts as failed.

        Without it, a result with a hash counts, since it is written after everything else.
        """
        status = self.read("status.json")
        if status.get("state") in get_args(State) and is_possible("step", status.get("step")):
            return {"reason": "", **status}
        if "sha256" in self.read("result.json"):
            return {"state": "finished", "step": self.last_step(), "reason": ""}
        return {"state": "failed", "step": 0, "reason": "unknown"}

    def set_status(
        self, state: State, step: int, reason: str = "", reached: Mapping[str, Any] | None = None
    ) -> None:
        """Write status.json; ``reached`` are the numbers of a training stopped before its end."""
        status = {"state": state, "step": step, "reason": reason}
        commit_json(self.path / "status.json", status | ({"reached": reached} if reached else {}))

    def reached(self) -> dict[str, Any]:
        """Return the numbers of a training that ``--stop-after`` stopped, until it continues.

        They are named as in result.json. Any other run has none.
        """
        reached = self.status().get("reached")
        return reached if isinstance(reached, dict) and not impossible_value(reached) else {}

    def read(self, name: str) -> dict[str, Any]:
        """Return the content of a JSON file; {} if the file is missing or damaged.

        A file that contains its own hash, such as result.json, is damaged if it was changed.
        """
        try:
            return self.read_result() if name == "result.json" else read_json(self.path / name)
        except (OSError, ValueError):
            return {}

    def read_result(self) -> dict[str, Any]:
        """Return the content of result.json."""
        result = read_json(self.path / "result.json")
        if "sha256" not in result and self._has_hashed_result():
            raise ValueError("it does not match its hash")
        if problem := impossible_value(result):
            raise ValueError(problem)
        return result

    def _has_hashed_result(self) -> bool:
        """Return whether vitcli 0.7 or newer, which adds a hash to result.json, wrote the run."""
        version = re.match(r"(\d+)\.(\d+)", str(self.read("meta.json").get("vitcli")))
        return version is not None and (int(version[1]), int(version[2])) >= (0, 7)

    def metrics(self) -> list[dict[str, Any]]:
        """Return the records of metrics.jsonl; an incomplete last line is ignored."""
        path = self.path / "metrics.jsonl"
        try:
            return parse_metrics(read_bounded(path, MAX_METRICS).decode(), path)
        except FileNotFoundError:
            return []
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: cannot be read: {error}") from error

    def set_metrics(self, records: list[dict[str, Any]]) -> None:
        text = "".join(json.dumps(record, allow_nan=False) + "\n" for record in records)
        commit(self.path / "metrics.jsonl", text.encode())

    @contextmanager
    def lock(self, timeout: float = 0.5) -> Iterator[None]:
        """Lock the folder; raise InUseError if another process holds the lock."""
        with hold_folder(self.path, "another process is using this run", timeout):
            yield


def _parsed(path: Path) -> ExperimentSpec:
    document = read_mapping(path)
    copies = path.parent / own_code.FOLDER
    return check(document.data, document, is_stored=True, copies=copies)


def parse_metrics(text: str, path: Path) -> list[dict[str, Any]]:
    """Return the records in the text of a metrics.jsonl; an incomplete last line is ignored."""
    lines = text.split("\n")[:-1]
    records = _parse_records(",".join(lines))  # at once: a large study has 100,000 lines
    if len(records) == len(lines):
        return records
    number = next((i for i, line in enumerate(lines, start=1) if len(_parse_records(line)) != 1), 0)
    raise InputError(f"{path}:{number}: not a record")


def _parse_records(text: str) -> list[dict[str, Any]]:
    """Return the records in JSON with commas in between; none if one of them is not a record."""
    try:
        records: list[Any] = parse_strict_json(f"[{text}]")
    except ValueError:
        return []
    is_sound = all(isinstance(r, dict) and type(r.get("step")) is int for r in records)
    return records if is_sound else []


@contextmanager
def hold_folder(folder: Path, refusal: str, timeout: float = 0.5) -> Iterator[None]:
    """Lock a folder, and create it if it does not exist.

    If another folder takes its place, ``commit`` refuses to write into that folder.

    By default, wait 0.5 s in case another process is only checking the lock.
    """
    require_utf8(folder)
    make_folder(folder)
    lock = file_lock(folder / LOCK, timeout)
    try:
        with errors_name(folder / LOCK):
            lock.acquire()
    except filelock.Timeout as error:
        raise InUseError(f"{folder}: {refusal}") from error
    try:
        with require_that_it_stays(folder), write_only_while_same(folder):
            yield
    finally:
        lock.release()


def temporary_files(run: Path) -> list[Path]:
    """Return temporary files of ``commit`` that a killed process left behind."""
    files = [run / name for name in FILES]
    files += [
        step / name for step in step_folders(run / "checkpoints") for name in CHECKPOINT_FILES
    ]
    return [path for file in files for path in temporary_files_of(file)]


def impossible_value(result: Mapping[str, Any]) -> str:
    """Return which value of a result no training has; empty if there is none."""
    wrong = (name for name, value in result.items() if not is_possible(name, value))
    return next((f"its {name} is {shorten(str(result[name]), MAX_ECHO)}" for name in wrong), "")


def is_possible(name: str, value: Any) -> bool:
    """Return whether a result can have this value; of names that are not known, any."""
    if name in RESULT_TEXTS:
        return isinstance(value, str)
    if name in RESULT_COUNTS:
        return type(value) is int and 0 <= value < 2**63
    metric = metric_of(name)
    if not (metric or name.endswith(RESULT_COSTS)):
        return True
    if value is None:
        return name != "train_seconds"
    limit = MAX_SECONDS if name.endswith("_seconds") else 1e300
    is_number = isinstance(value, int | float) and type(value) is not bool and abs(value) < limit
    return is_number and (metric.is_possible(value) if metric else value >= 0)


def headline_key(result: Mapping[str, Any], name: str) -> str:
    """Return the key in result.json of the number that a run is judged by.

    A run of a search measures no test image, so that it is judged by its validation split.
    """
    return f"{'val' if result.get('num_test') == 0 else 'test'}_{name}"


def step_folders(checkpoints: Path) -> list[Path]:
    """Return the folders of a run's checkpoints; no links, and no copies such as ``4.bak``."""
    found = [] if checkpoints.is_symlink() else checkpoints.glob("*/")
    return [path for path in found if _is_step(path.name) and not path.is_symlink()]


def _is_step(name: str) -> bool:
    return name.isdecimal() and name == str(int(name))


def delete_step(path: Path) -> None:
    """Delete the files of a checkpoint, its manifest first, and its folder if it is empty then."""
    for file in [path / name for name in CHECKPOINT_FILES]:
        file.unlink(missing_ok=True)
        for temporary in temporary_files_of(file):
            temporary.unlink(missing_ok=True)
    with suppress(OSError):  # another file is in it
        path.rmdir()


def steps(checkpoints: Path) -> list[int]:
    names = [path.parent.name for path in checkpoints.glob(f"*/{MANIFEST}")]
    return sorted((int(name) for name in names if _is_step(name)), reverse=True)


def is_effectively_empty(folder: Path) -> bool:
    """Return whether a run can be written into a folder without losing a file."""
    files = [path for path in folder.iterdir() if not path.name.startswith(".")]
    return not files or (
        [path.name for path in files] == ["checkpoints"] and not any(files[0].iterdir())
    )


def default_path(name: str, spec: ExperimentSpec, changed: bool) -> Path:
    """Return runs/<experiment>/train/seed<k>; a changed experiment has ``train-<hash8>``."""
    if name.startswith("."):
        raise ConfigError(f"an experiment cannot be called {name!r}; rename its file")
    variant = f"train-{config_hash(spec)[:8]}" if changed else "train"
    return RUNS / name / variant / f"seed{spec.seed}"


def named_folder(name: str) -> Path:
    """Return runs/<name>."""
    if not name.strip():
        raise ConfigError("--name is empty; is a shell variable unset?")
    if set(name) & set("/\\") or name[0] in ".-~" or not name.isprintable():
        raise ConfigError(
            f"--name takes a plain name such as pets, got {name!r}; -o takes the path of a folder"
        )
    if name == "auto" or name in experiment_files():
        meaning = "'--resume auto'" if name == "auto" else f"the runs of the experiment {name}"
        raise ConfigError(f"--name {name} would be mistaken for {meaning}; choose another name")
    return RUNS / name


def list_runs(folder: Path = RUNS) -> list[RunDir]:
    """Return every run below a folder, ordered by the time of the last status change."""
    found = {path.parent for path in folder.rglob("config.yaml")}
    trackers = {path / "tracker" for path in found}  # in runs of 1.0, W&B's config.yaml is below
    runs = [RunDir(path) for path in found if trackers.isdisjoint(path.parents)]
    return sorted(runs, key=lambda run: (_changed_at(run), str(run.path)))


def _changed_at(run: RunDir) -> float:
    try:
        return os.stat(run.path / "status.json").st_mtime
    except OSError:
        return 0.0


def find_run(text: str) -> RunDir:
    """Find a run by its folder or its name under runs/, or a bundled model by its name.

    The name of an experiment means its only run. If it has several, the name means the run of the
    unchanged experiment with random seed 0.
    """
    if not text:
        raise ConfigError("the name of a run is empty; is a shell variable unset?")
    try:
        with suppress(FileNotFoundError, NotADirectoryError):
            Path(text).stat()
    except OSError as error:  # such as a name that is too long
        name = shorten(text, MAX_ECHO)
        raise InputError(f"no run is called {name!r}: {error.strerror}") from error
    for folder in (Path(text), RUNS / text):
        if (folder / "config.yaml").is_file():
            return RunDir(folder)
        if folder.is_dir() and (inside := list_runs(folder)):
            if len(inside) == 1:
                return inside[0]
            if (folder / DEFAULT_RUN / "config.yaml").is_file():
                return RunDir(folder / DEFAULT_RUN)
            names = ", ".join(run.name for run in inside[:6])
            raise ConfigError(f"{text} holds {len(inside)} runs; name one of them: {names}")
    if text in bundled_models():
        return RunDir(BUNDLED / text)
    if Path(text).is_dir():
        raise InputError(f"{text}: not a run folder (no config.yaml)")
    raise InputError(describe_unknown(text))


def describe_unknown(text: str) -> str:
    """Return that there is no run of this name, and what was probably meant."""
    unknown = f"no run is called {shorten(text, MAX_ECHO)!r}"
    if text.endswith(WEIGHTS) or (Path(text).is_file() and not text.endswith(YAML)):
        command = f"vitcli import {shlex.quote(text)} EXPERIMENT --name NAME"
        return f"{unknown}; to make a run from a weights file, type: {command}"
    known = [*bundled_models(), *(run.name for run in list_runs(RUNS))]
    where = (
        "'vitcli runs ls' lists them" if Path(RUNS).is_dir() else f"there is no folder {RUNS} here"
    )
    return f"{unknown} ({where}){did_you_mean(text, known)}"


def bundled_models() -> list[str]:
    return sorted(path.parent.name for path in BUNDLED.glob("*/config.yaml"))
