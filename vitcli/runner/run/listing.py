"""Summaries of runs, and the removal of runs."""

import contextlib
import os
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePath
from typing import Any

from vitcli.core.spec import ExperimentSpec
from vitcli.core.spec.metrics import Metric
from vitcli.core.spec.task import DEFAULT_TASK, TASKS
from vitcli.runner.errors import ConfigError, InputError, InUseError, ResourceError
from vitcli.runner.experiment import own_code
from vitcli.runner.experiment.config import config_text
from vitcli.runner.experiment.yaml_text import read_mapping
from vitcli.runner.files import make_output_folder, read_bounded, sha256
from vitcli.runner.run.compare import differing_fields
from vitcli.runner.run.folder import (
    CHANGED,
    EVENTS,
    FILES,
    RUNS,
    RunDir,
    delete_step,
    is_effectively_empty,
    step_folders,
    temporary_files,
)
from vitcli.runner.run.record import last_measures, refuse_unreadable, whole_flops

PAGE = "index.html"
"""Name of the page of runs in a folder of runs."""
PAGE_MARK = '<meta name="generator" content="vitcli runs page">'
"""A line by which vitcli recognises a page of runs, which it may replace or remove."""


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """One row of ``vitcli runs ls``; unknown values are None."""

    task: str
    """The task in config.yaml; the default task if the file cannot be read."""

    name: str
    path: str
    state: str
    reason: str
    experiment: str | None
    started_from: str | None
    """The run whose weights the training began with, or the weights that were imported."""
    data: str | None
    started: str | None
    """Time of the start in UTC, as in meta.json."""
    epochs: int
    epochs_planned: int | None
    test_score: float | None
    """The task's headline number on the test images."""
    val_score: float | None
    """The task's headline number on the validation images."""
    parameters: int | None
    flops: float | None
    """Operations of the training, its pre-training and its teacher's own training."""
    train_seconds: float | None
    seed: int | None
    commit: str | None
    """Commit of the code; None if it ran from an installed package."""
    dirty: bool
    """Whether the commit alone does not reproduce the run; see ``is_dirty``."""
    differs: dict[str, Any]
    """Settings that differ from the experiment: dotted field -> value."""

    @property
    def headline(self) -> Metric:
        return TASKS[self.task].headline

    @property
    def shown_settings(self) -> dict[str, Any]:
        first = {"from": self.started_from} if self.started_from else {}
        return first | {name: value for name, value in self.differs.items() if name != "train.init"}

    @property
    def score(self) -> float | None:
        return self.val_score if self.test_score is None else self.test_score

    @property
    def is_validation(self) -> bool:
        return self.test_score is None and self.val_score is not None

    def document(self) -> dict[str, Any]:
        """Return the row as JSON values.

        ``test_accuracy`` and ``val_accuracy`` are null for a run whose task does not measure
        accuracy; ``test_<name>`` and ``val_<name>`` follow them.
        """
        row: dict[str, Any] = {}
        for name, value in asdict(self).items():
            split, _, rest = name.partition("_")
            if rest == "score":
                row |= {f"{split}_accuracy": None, f"{split}_{self.headline.name}": value}
            elif name != "task":
                row[name] = value
        return row


def summarize_runs(runs: Sequence[RunDir]) -> list[RunSummary]:
    """Summarize runs, which are listed oldest first."""
    references: dict[str, ExperimentSpec] = {}
    return [summarize(run, references, readable_spec(run)) for run in runs]


def readable_spec(run: RunDir) -> ExperimentSpec | None:
    """Return the configuration of a run; None if config.yaml cannot be read, or was changed."""
    try:
        return run.trained_spec()
    except (ConfigError, InputError):
        return None


def summarize(
    run: RunDir, references: dict[str, ExperimentSpec], spec: ExperimentSpec | None
) -> RunSummary:
    """Summarize a run from its files, even if some are missing or damaged.

    Args:
        spec: The run's configuration; None if it cannot be read.
    """
    meta, measured = run.read("meta.json"), last_measures(run)
    state, reason = shown_state(run)
    if spec is None and state != "damaged" and (run.path / "config.yaml").exists():
        state, reason = "damaged", "its config.yaml cannot be read"
    task = spec.task.name if spec else DEFAULT_TASK
    data = spec.data.name if spec else _text(meta.get("data"))
    if "imported" in meta and "data" not in meta:  # of weights that came without a data set
        data = None
    return RunSummary(
        task=task,
        name=run.name,
        path=str(run.path),
        state=state,
        reason=reason,
        experiment=_text(meta.get("experiment")),
        started_from=origin(spec, meta),
        data=data,
        started=_text(meta.get("started")),
        epochs=measured.get("epochs", 0),
        epochs_planned=spec.train.epochs if spec else None,
        test_score=measured.get(f"test_{TASKS[task].headline.name}"),
        val_score=measured.get(f"val_{TASKS[task].headline.name}"),
        parameters=measured.get("parameters"),
        flops=whole_flops(measured),
        train_seconds=measured.get("train_seconds"),
        seed=spec.seed if spec else meta.get("seed"),
        commit=_text(meta.get("commit")),
        dirty=is_dirty(meta),
        differs=differing_fields(spec, meta, references) if spec else {},
    )


def origin(spec: ExperimentSpec | None, meta: dict[str, Any]) -> str | None:
    """Return the run that a run began with, or the file or timm's name of imported weights."""
    if imported := _text(meta.get("imported")):
        timm = _text(meta.get("timm"))
        return f"timm:{timm}" if timm else imported
    return spec.train.init if spec else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def is_dirty(meta: dict[str, Any]) -> bool:
    """Return whether a part of a run was trained by other code than the run's commit."""
    sessions = meta.get("sessions")
    parts = [meta, *(sessions if isinstance(sessions, list) else [])]
    return any(
        not isinstance(part, dict) or part.get("dirty") or part.get("commit") != meta.get("commit")
        for part in parts
    )


def live_state(run: RunDir) -> tuple[str, str]:
    """Return state and reason. A "running" run that no process holds was interrupted."""
    status = run.status()
    state, reason = str(status["state"]), str(status.get("reason") or "")
    if state == "running" and not is_in_use(run):
        return "interrupted", "its process is gone"
    return state, reason


def shown_state(run: RunDir) -> tuple[str, str]:
    """Return state and reason for a list. A run is damaged if a file was edited, or is gone."""
    try:
        refuse_unreadable(run)
    except InputError as error:
        return "damaged", str(error).removeprefix(f"{run.path}/")
    with contextlib.suppress(OSError, ValueError):  # whoever reads the file says why
        if run.has_changed_config():
            return "damaged", f"config.yaml: {CHANGED}"
    if (run.path / "result.json").exists() and not run.read("result.json"):
        return "damaged", "its result.json is damaged, or was changed by hand"
    if lacks_result(run):
        return "damaged", "its result.json is missing"
    return live_state(run)


def lacks_result(run: RunDir) -> bool:
    is_trained = run.status()["state"] == "finished" and not run.read("meta.json").get("imported")
    return is_trained and not (run.path / "result.json").exists()


def is_in_use(run: RunDir) -> bool:
    """Return whether a process holds the run's lock. Creates no lock file."""
    if not (run.path / ".lock").exists():
        return False
    try:
        with run.lock(timeout=0):
            return False
    except InUseError:
        return True
    except OSError:  # a read-only copy: no process can train in it
        return False


def select_runs(
    summaries: Sequence[RunSummary],
    names: Sequence[str] = (),
    *,
    state: str | None = None,
    data: str | None = None,
    experiment: str | None = None,
) -> list[RunSummary]:
    """Return the runs that fit all conditions; ``*`` in a text stands for any characters."""
    return [
        run
        for run in summaries
        if (not names or any(has_name(run, name) for name in names))
        and state in (None, run.state)
        and (data is None or reads_data(run, data))
        and (experiment is None or fnmatchcase(run.experiment or "", experiment))
    ]


def has_name(run: RunSummary, pattern: str) -> bool:
    """Return whether a run has a name, or lies in a folder of this name."""
    pattern = os.path.normpath(pattern) if pattern else pattern
    pattern = "." if pattern == str(RUNS) else pattern.removeprefix(f"{RUNS}/")
    folders = [run.name, *map(str, PurePath(run.name).parents)]
    return any(name == pattern or fnmatchcase(name, pattern) for name in folders)


def short_data_name(name: str) -> str:
    """Return the name of a data set without the path to a folder of pictures."""
    kind, colon, path = name.partition(":")
    return f"{kind}{colon}{Path(path).name}" if colon else name


def reads_data(run: RunSummary, pattern: str) -> bool:
    """Return whether a run's data set has a name; ``imagefolder`` is every folder of pictures."""
    full = run.data or ""
    names = (full, short_data_name(full), full.partition(":")[0])
    return any(fnmatchcase(name, pattern) for name in names)


def rank(summaries: Sequence[RunSummary]) -> list[RunSummary]:
    """Return the runs with the best result first, and runs without a result last.

    A run without a test result is ranked by its validation result.
    """
    measured = [run for run in summaries if run.score is not None]
    tasks = sorted({run.task for run in measured})
    if len(tasks) > 1:
        raise ConfigError(f"the results of different tasks cannot be compared ({', '.join(tasks)})")
    falling = any(run.headline.higher_is_better for run in measured)
    best_first = sorted(measured, key=lambda run: run.score or 0, reverse=falling)
    return best_first + [run for run in summaries if run.score is None]


def is_page_of_runs(path: Path) -> bool:
    return path.is_file() and PAGE_MARK in path.read_text(errors="replace")


def is_run_folder(run: RunDir) -> bool:
    """Return whether vitcli wrote this folder; other programs also write a config.yaml."""
    if {"state", "step"} <= run.read("status.json").keys():
        return True
    try:
        written = config_text(run.spec()).encode()
    except ConfigError:
        return False
    # After a power loss, only the configuration may be left; a person writes it otherwise.
    return (run.path / ".lock").exists() or (run.path / "config.yaml").read_bytes() == written


def make_run_folder(run: RunDir, *, rerun: bool) -> None:
    """Make the folder of a training, unless it exists. Call it before the run is locked."""
    run.refuse_links()
    if not run.exists:
        make_output_folder(run.path)
    is_own = is_run_folder(run) and (rerun or run.exists)
    if not (is_own or is_effectively_empty(run.path)):
        raise ConfigError(
            f"{run.path} holds files that vitcli did not write; choose another --name or -o"
        )


def remove_runs(runs: Sequence[RunDir]) -> list[str]:
    """Remove the files of all given runs, or of none of them.

    Returns:
        Files that vitcli did not write; they are not removed.
    """
    distinct = {run.path.resolve(): run for run in runs}
    for path, run in distinct.items():
        run.require_own()
        if not is_run_folder(run):
            raise InputError(f"{path}: not a folder that vitcli wrote; nothing was removed")
        refuse_link(run.path)
        run.refuse_folders()
    left: list[str] = []
    with contextlib.ExitStack() as held:
        try:
            for run in distinct.values():
                held.enter_context(run.lock())
            for path in distinct:
                left += remove_run(path)
        except OSError as error:
            raise ResourceError(f"{error.filename}: cannot be removed: {error.strerror}") from error
    return left


def refuse_link(folder: Path) -> None:
    """Refuse to remove what a link leads to."""
    if folder.is_symlink():
        remove = shlex.join(["vitcli", "runs", "rm", str(folder.resolve())])
        raise InputError(
            f"{folder} is a link; nothing was removed. The folder it leads to: {remove}"
            f"   the link alone: {shlex.join(['rm', str(folder)])}"
        )


def delete_run_files(folder: Path) -> None:
    """Delete the files that a run wrote, and no other files; links are not followed."""
    for path in temporary_files(folder):
        path.unlink(missing_ok=True)
    for path in step_folders(folder / "checkpoints"):
        delete_step(path)
    delete_code_copies(folder, _recorded_configs(RunDir(folder)))
    for path in (folder / "checkpoints", folder / own_code.FOLDER):
        with contextlib.suppress(OSError):  # another file is in it
            path.rmdir()
    for name in FILES:
        (folder / name).unlink(missing_ok=True)
        if name == "predictions.npz":
            for path in folder.glob(EVENTS):
                if not path.is_dir():
                    path.unlink()


def delete_code_copies(folder: Path, configs: Iterable[Any]) -> None:
    """Delete the unchanged copies of own code in a run or study; ``configs`` hold their hashes."""
    codes = [config.get("code") for config in configs if isinstance(config, dict)]
    known = [item for code in codes if isinstance(code, dict) for item in code.items()]
    place = folder / own_code.FOLDER
    for path in [] if place.is_symlink() else list(place.rglob("*")):
        with contextlib.suppress(OSError, ValueError):  # a folder, or larger than own code
            content = b"" if path.is_symlink() else read_bounded(path, own_code.MAX_BYTES)
            if (str(path.relative_to(place)), sha256(content)) in known:
                path.unlink()


def _recorded_configs(run: RunDir) -> list[Any]:
    """Return the raw configurations in the files of a run, of which one may be damaged."""
    configs = [run.read("meta.json").get("config")]
    with contextlib.suppress(ConfigError):
        configs.append(read_mapping(run.path / "config.yaml").data)
    return configs


def remove_run(folder: Path) -> list[str]:
    """Delete a run and the folders that become empty; return files that vitcli did not write."""
    delete_run_files(folder)
    left = foreign_files(folder)
    if not left:
        remove_empty_folders(folder)
    return left


def foreign_files(folder: Path) -> list[str]:
    """Return the files and links that are left in a folder, except locks."""
    return [
        str(path)
        for path in sorted(folder.rglob("*"))
        if path.name != ".lock" and (path.is_symlink() or not path.is_dir())
    ]


def remove_empty_folders(folder: Path) -> None:
    """Remove a folder that is empty except for a lock, and its empty parents under runs/."""
    if any(path.name != ".lock" for path in folder.iterdir()):
        return
    (folder / ".lock").unlink(missing_ok=True)
    folder.rmdir()
    top, folder = RUNS.resolve(), folder.resolve()
    for parent in folder.parents:
        if top not in parent.parents:
            return
        try:
            parent.rmdir()
        except OSError:  # the parent holds other runs
            return
