"""The run folder: plain files that can be copied. status.json holds the state of the run."""

import itertools
import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import filelock

from vitcli.core.spec import ExperimentSpec
from vitcli.runner import files
from vitcli.runner.errors import ConfigError, InputError, InUseError, OwnCodeError
from vitcli.runner.experiment import own_code
from vitcli.runner.experiment.config import (
    config_hash,
    config_text,
    experiment_files,
    parse_experiment,
)
from vitcli.runner.experiment.yaml_text import MAX_BYTES, Places, read_mapping
from vitcli.runner.text import did_you_mean, printable, shorten
from vitcli.version import PACKAGE

RUNS = Path(os.environ.get("VITCLI_RUNS") or "runs")
"""The folder of runs and studies."""
BUNDLED = PACKAGE / "pretrained"
"""The folder of the bundled models: run folders that are only read."""
DEFAULT_RUN = Path("train/seed0")
"""The run of an unchanged experiment, below the folder of the experiment."""
CONFIG, META, RESULT = "config.yaml", "meta.json", "result.json"
STATUS, METRICS, SPLIT = "status.json", "metrics.jsonl", "split.json"
FILES = (RESULT, STATUS, METRICS, META, "predictions.npz", "review.html", SPLIT, CONFIG)
"""In order of removal: config.yaml, which makes the folder a run, comes last."""
MANIFEST = "manifest.json"
"""Written last into the folder of a checkpoint. A folder without it is not a checkpoint."""
TENSORS = "tensors.safetensors"
CHECKPOINT_FILES = (MANIFEST, TENSORS, "weights.safetensors")
WEIGHTS = (".pt", ".pth", ".bin", ".ckpt", ".safetensors")
"""Suffixes of weights files."""
YAML = (".yaml", ".yml")
MAX_ECHO = 100
"""Number of characters that an error repeats of a name that no run has."""
Status = Literal["finished", "diverged", "failed", "interrupted", "running"]
"""State in status.json."""
RESULT_STATES: tuple[Status, ...] = ("finished", "diverged")
"""The states of a run that has a result; such a run is not trained again."""

SEED = re.compile(rb"^seed: (\d{1,9})$", re.MULTILINE)
_parsed_before: dict[Any, tuple[dict[str, Any], ExperimentSpec | None]] = {}
"""What stands before and after the seed in a config.yaml -> its content and experiment."""

EVENTS = "events.out.tfevents.[0-9]*.*.[0-9]*"
"""TensorBoard's files: time, host and process, which no file of a person has in its name."""


class RunDir:
    """One run: the paths and records in its folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"

    @property
    def exists(self) -> bool:
        """Whether vitcli made a run here; its config.yaml may be lost."""
        known = {name for name in (CONFIG, META, STATUS) if (self.path / name).is_file()}
        return CONFIG in known or {META, STATUS} <= known

    @property
    def name(self) -> str:
        """The path relative to runs/, or the name of a bundled model, or else the whole path."""
        path = self.path.resolve()
        for folder in (RUNS.resolve(), BUNDLED.resolve()):
            if folder in path.parents:
                return str(path.relative_to(folder))
        return str(self.path)

    def command(
        self,
        verb: str,
        data_dir: Path | None = None,
        device: str = "auto",
        *,
        of_config: bool = False,
        more: Sequence[str] = (),
    ) -> str:
        """Return a command about this run, such as ``vitcli eval quickstart``, ready to be typed.

        ``verb`` is with its options, such as ``train --resume``; on another ``device`` than that of
        the run, it might not continue. With ``of_config``, it takes the run's config.yaml.
        """
        is_clear = not Path(self.name).exists()  # else it may also name a folder of pictures
        name = str(self.path / CONFIG) if of_config else self.name if is_clear else str(self.path)
        name = f"./{name}" if name.startswith("-") else name  # it is no option
        words = ["vitcli", *verb.split(), name, *more]
        words += ["--data-dir", str(data_dir)] if data_dir else []
        words += ["--device", device] if device != "auto" else []
        has_copies = self.path.joinpath(own_code.FOLDER).is_dir()
        if (has_copies or not self.exists) and not verb.startswith("runs"):
            words += own_code.options() or ["--trust-code"] * has_copies
        return shlex.join(words)

    @property
    def rerun_command(self) -> str:
        return self.command("train", of_config=True, more=["-o", str(self.path), "--rerun"])

    @property
    def is_bundled(self) -> bool:
        return BUNDLED.resolve() in self.path.resolve().parents

    def is_only_a_classifier(self, config: Mapping[str, Any]) -> bool:
        """Return whether the plugin of a bundled model's task is missing: it still classifies."""
        return self.is_bundled and bool(own_code.missing_plugin(config))

    def require_own(self) -> None:
        if self.is_bundled:
            raise ConfigError(f"{self.name} is a bundled model and is only read")

    def create(self, spec: ExperimentSpec) -> None:
        """Write config.yaml, which makes the folder a run, and then the copies of own code."""
        self.refuse_links()
        files.make_folder(self.checkpoints)
        for path in temporary_files(self.path):
            path.unlink(missing_ok=True)
        files.commit(self.path / "config.yaml", config_text(spec).encode())
        if spec.code or spec.task.taught_by:
            own_code.save_copies(spec, self.path)

    def refuse_links(self) -> None:
        """Refuse to write where a link leads to files that are not the run's own."""
        code, inside = self.path / own_code.FOLDER, [*self.checkpoints.glob("*")]
        written = [self.path / name for name in FILES]
        written += [path / name for path in inside for name in CHECKPOINT_FILES]
        for path in (self.checkpoints, code, *inside, *code.rglob("*"), *written):
            if path.is_symlink():
                raise InputError(
                    f"{path} is a link, and a run writes no file elsewhere; put a copy of"
                    f" {printable(os.readlink(path))} in its place"
                )
            if path.exists() and not (path.is_file() or path.is_dir()):
                raise InputError(f"{path}: not a regular file; remove it")
        self.refuse_folders()

    def refuse_folders(self) -> None:
        """Refuse a folder in place of a file, before any file is lost."""
        for path in _files_of(self.path):
            if path.is_dir() and not path.is_symlink():
                raise InputError(
                    f"{path} is a folder, and a run has a file there; move it elsewhere"
                )

    def config_sha256(self) -> str:
        """Return the SHA-256 of config.yaml: a truncated file may still be valid YAML."""
        return files.sha256(files.read_bounded(self.path / "config.yaml", MAX_BYTES))

    def last_step(self) -> int:
        return max(steps(self.checkpoints), default=0)

    def checkpoint_problem(self, step: int) -> str:
        """Return what is wrong with the checkpoint of a step; empty text if nothing is.

        The sizes of the files are compared, and not their hashes, because lists read every run.
        """
        folder = self.checkpoints / str(step)
        try:
            for name, expected in dict(files.read_json(folder / MANIFEST).get("files", {})).items():
                size = (folder / name).stat().st_size
                if size != expected["bytes"]:
                    of = f"{size:,} of {expected['bytes']:,} bytes"
                    return f"the checkpoint of step {step} is damaged: {name} has {of}"
        except FileNotFoundError:
            return f"the checkpoint of step {step} is missing"
        except OSError as error:
            return f"the checkpoint of step {step} cannot be read: {error.strerror}"
        except (ValueError, TypeError, KeyError):
            return f"the checkpoint of step {step} is damaged: its {MANIFEST}"
        return ""

    def config(self) -> dict[str, Any]:
        return self._parsed()[0]

    def spec(self) -> ExperimentSpec:
        """Read and check config.yaml; the own code of its parts must be loaded."""
        config, spec = self._parsed()
        place = Places((), str(self.path / CONFIG))
        copies = self.path / own_code.FOLDER
        with _damage(config):
            return spec or parse_experiment(config, place, is_stored=True, copies=copies)

    def _parsed(self) -> tuple[dict[str, Any], ExperimentSpec | None]:
        """Return config.yaml and, without own code, its spec.

        Of runs that differ in their seeds alone, one is parsed.
        """
        path = self.path / CONFIG
        try:
            parts = SEED.split(files.read_bounded(path, MAX_BYTES))
        except (OSError, ValueError):  # the parser says why
            parts = []
        key = (parts[0], parts[-1]) if len(parts) == 3 else None
        if key not in _parsed_before:
            if not path.exists():
                remove = self.command("runs rm")
                raise InputError(f"{path}: it is missing\nrestore it, or remove the run: {remove}")
            with _damage():
                document = read_mapping(path)
                config, spec = document.data, None
                known = config | {"task": {}} if self.is_only_a_classifier(config) else config
                if not own_code.is_read_raw(known):
                    copies = self.path / own_code.FOLDER
                    spec = parse_experiment(known, document, is_stored=True, copies=copies)
            if key is None:
                return config, spec
            _parsed_before[key] = config, spec
        config, spec = _parsed_before[key]
        seed = {"seed": int(parts[1])}
        return config | seed, spec and spec.model_copy(update=seed)

    def set_status(
        self, state: Status, step: int, reason: str = "", reached: Mapping[str, Any] | None = None
    ) -> None:
        """Write status.json; ``reached`` are the numbers of a training stopped before its end."""
        status = {"state": state, "step": step, "reason": reason}
        files.commit_json(self.path / STATUS, status | ({"reached": reached} if reached else {}))

    def set_meta(self, meta: Mapping[str, Any]) -> None:
        files.commit_json(self.path / META, meta)

    def set_result(self, result: dict[str, Any]) -> None:
        files.commit(self.path / RESULT, files.to_hashed_json(result))

    def delete_result(self) -> None:
        (self.path / RESULT).unlink(missing_ok=True)

    def set_metrics(self, records: Sequence[Mapping[str, Any]]) -> None:
        text = "".join(json.dumps(record, allow_nan=False) + "\n" for record in records)
        files.commit(self.path / METRICS, text.encode())

    def lock(self, timeout: float = 0.5) -> AbstractContextManager[None]:
        """Return the folder's lock: to enter it is an InUseError if another process holds it."""
        return hold_folder(self.path, "another process is using this run", timeout)

    def refuse_use(self, timeout: float = 0.5) -> None:
        """Raise InUseError if another process holds the lock. Creates no lock file."""
        if (self.path / files.LOCK).exists():
            # an OSError: a read-only copy, in which no process can train
            with suppress(OSError), self.lock(timeout):
                pass

    def is_in_use(self) -> bool:
        try:
            self.refuse_use(timeout=0)
        except InUseError:
            return True
        return False


@contextmanager
def _damage(config: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Turn what is wrong with a stored configuration into an InputError.

    That its own code is not named, or a plugin of it is off, is no damage.
    """
    try:
        yield
    except OwnCodeError:
        raise
    except ConfigError as error:
        if own_code.missing_plugin(config or {}):
            raise
        raise InputError(str(error)) from error


@contextmanager
def hold_folder(folder: Path, refusal: str, timeout: float = 0.5) -> Iterator[None]:
    """Lock a folder, and create it if it does not exist.

    If another folder takes its place, ``commit`` refuses to write into that folder.

    By default, wait 0.5 s in case another process is only checking the lock.
    """
    files.require_utf8(folder)
    files.make_folder(folder)
    lock = files.file_lock(folder / files.LOCK, timeout)
    try:
        with files.errors_name(folder / files.LOCK):
            lock.acquire()
    except filelock.Timeout as error:
        raise InUseError(f"{folder}: {refusal}") from error
    try:
        with files.require_that_it_stays(folder), files.write_only_while_same(folder):
            yield
    finally:
        lock.release()


def temporary_files(run: Path) -> list[Path]:
    """Return temporary files of ``commit`` that a killed process left behind."""
    return [path for file in _files_of(run) for path in files.temporary_files_of(file)]


def _files_of(run: Path) -> list[Path]:
    steps = step_folders(run / "checkpoints")
    return [run / name for name in FILES] + [
        step / name for step in steps for name in CHECKPOINT_FILES
    ]


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
        for temporary in files.temporary_files_of(file):
            temporary.unlink(missing_ok=True)
    with suppress(OSError):  # another file is in it
        path.rmdir()


def steps(checkpoints: Path) -> list[int]:
    names = [path.parent.name for path in checkpoints.glob(f"*/{MANIFEST}")]
    return sorted((int(name) for name in names if _is_step(name)), reverse=True)


def is_effectively_empty(folder: Path) -> bool:
    """Return whether a run can be written into a folder without losing a file."""
    visible = [path for path in folder.iterdir() if not path.name.startswith(".")]
    return not visible or (
        [path.name for path in visible] == ["checkpoints"] and not any(visible[0].iterdir())
    )


def default_path(name: str, spec: ExperimentSpec, changed: bool) -> Path:
    """Return runs/<experiment>/train/seed<k>; a changed experiment has ``train-<hash8>``."""
    if name.startswith("."):
        raise ConfigError(f"an experiment cannot be called {name!r}; rename its file")
    variant = f"train-{config_hash(spec)[:8]}" if changed else "train"
    return RUNS / name / variant / f"seed{spec.seed}"


def named_folder(name: str, option: str = "--name") -> Path:
    if not name.strip():
        raise ConfigError(f"{option} is empty; is a shell variable unset?")
    if set(name) & set("/\\") or name[0] in ".-~" or not name.isprintable():
        raise ConfigError(
            f"{option} takes a plain name, got {name!r}; type {option}"
            f" {plain_name(name) or 'pets'}, or -o with the path of a folder"
        )
    if name == "auto" or name in experiment_files():
        meaning = "'--resume auto'" if name == "auto" else f"the runs of the experiment {name}"
        raise ConfigError(f"{option} {name} would be mistaken for {meaning}; choose another name")
    return RUNS / name


def plain_name(text: str) -> str:
    return re.sub(r"[^\w.-]+", "-", text).strip("-.")


def unused_name(name: str) -> str:
    """Return a name that no run has: ``name``, or with a number such as ``name-2``."""
    names = (f"{name}-{number}" for number in itertools.count(2))
    return next(name for name in itertools.chain([name], names) if not (RUNS / name).exists())


def list_runs(folder: Path = RUNS) -> list[RunDir]:
    """Return every run below a folder, ordered by the time of the last status change."""
    found = {path.parent for name in (CONFIG, STATUS) for path in folder.rglob(name)}
    found = {path for path in found if RunDir(path).exists}
    trackers = {path / "tracker" for path in found}  # in runs of 1.0, W&B's config.yaml is below
    runs = [RunDir(path) for path in found if trackers.isdisjoint(path.parents)]
    return sorted(runs, key=lambda run: (_changed_at(run), str(run.path)))


def find_runs(texts: Sequence[str]) -> list[RunDir]:
    """Return the runs that are named or below named folders, each once; by default all."""
    runs: dict[Path, RunDir] = {}
    for text in texts or [str(RUNS)]:
        inside = list_runs(Path(text)) or list_runs(RUNS / text) or [find_run(text)]
        runs |= {run.path.resolve(): run for run in inside}
    return sorted(runs.values(), key=lambda run: run.name)


def _changed_at(run: RunDir) -> float:
    try:
        return os.stat(run.path / STATUS).st_mtime
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
        if RunDir(folder).exists:
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
    raise InputError(describe_unknown(text))


def describe_unknown(text: str) -> str:
    """Return that there is no run of this name, and what was probably meant."""
    for folder in (Path(text), RUNS / text):
        if (folder / "plan.json").is_file():
            shown = shlex.join(["vitcli", "runs", "watch", str(folder)])
            return f"{folder}: a study without a run; show its trials: {shown}"
    if Path(text).is_dir():
        return f"{text}: not a run folder (no config.yaml)"
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
