"""RunRecord: what the files of a run say. Only ``read_record`` opens these files. No torch.

A file may be damaged, edited or written by another version. What cannot be used is named in
``problems``, and the run is then ``damaged``; everything else is read.
"""

import re
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, fields, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeGuard, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SkipValidation, ValidationError
from pydantic.dataclasses import dataclass

from vitcli.core.metric import MAX_NUMBER, Metric, bare_name, metric_of, own_metrics
from vitcli.core.spec import ExperimentSpec
from vitcli.core.spec.rows import as_tuple, built_in
from vitcli.core.spec.task import DEFAULT_TASK, TASKS, TaskRow
from vitcli.runner.errors import InputError, UserError
from vitcli.runner.experiment.config import STATISTICS, Experiment, config_hash, config_text
from vitcli.runner.experiment.own_code import is_read_raw, missing_plugin, plugins_of
from vitcli.runner.experiment.yaml_text import dump, value_at
from vitcli.runner.files import open_regular, parse_strict_json, read_bounded, read_json, sha256
from vitcli.runner.run.folder import (
    CONFIG,
    FILES,
    META,
    METRICS,
    RESULT,
    RESULT_STATES,
    STATUS,
    RunDir,
    Status,
    find_run,
)
from vitcli.runner.text import quantity, shorten

if TYPE_CHECKING:
    from vitcli.core.data.source import DataSet
    from vitcli.runner.run.predictions import PerImage

State = Literal[Status, "damaged", "stale", "missing", "saved"]
"""Of a run. A trial of a study is ``missing`` before it begins, ``stale`` if its folder holds
another training, and ``saved`` if only an earlier call knows its saved result."""
MAX_EPOCH = 10**9
MAX_METRICS = 1 << 30
"""Largest size of metrics.jsonl in bytes."""
MAX_ECHO = 100
MAX_SECONDS = 1e10
NO_TEST = {"without_test": True, "num_test": 0}
"""Entries in meta.json of a run that measures validation images only."""
UNREADABLE = "cannot be read"
EDITED = "it differs from that of the training"
WRONG_TYPE = "a value has another type"
TEXTS = ("precision", "kernels", "lost_events", "warning", "sha256")
COUNTS = (*("parameters", "forward_flops", "epochs", "steps", "step", "stopped_at", "num_test"),)
COST_ENDINGS = ("seconds", "per_second", "flops")
UNKNOWN = Metric(name="score", label="score")
"""Headline of an own task whose run does not state it."""
HEADLINE = ("name", "label", "scale", "unit", "digits", "short", "higher_is_better")
"""Facts of a headline metric in meta.json of a run with own code, which lists need without it."""
COSTS = (
    *("train_flops", "pretrain_flops", "pretrain_seconds"),
    *("teacher_flops", "teacher_train_flops"),
)
"""Numbers of result.json that are not the task's, and that a trial may lack."""
MAIN_NUMBERS = ("test_accuracy", "test_loss", "train_loss", "train_seconds", "images_per_second")
"""Numbers of a trial with a key of their own in the document of a study."""
SAVED_NUMBERS = (
    *("test_accuracy", "test_loss", "train_loss", "val_accuracy", "train_seconds"),
    *("images_per_second", "parameters", "forward_flops", "num_test", "precision", "kernels"),
)
"""Keys of ``result`` in a saved trial; the others are below ``measured``, as in a document."""


def _as_pairs(value: Any) -> Any:
    return tuple(as_tuple(pair) for pair in value) if isinstance(value, list) else value


Count = Annotated[int, Field(ge=0, lt=2**63)]
Curve = Annotated[tuple[tuple[Count, float], ...], BeforeValidator(_as_pairs)]
Measured = Annotated[float, Field(ge=-1e39, le=1e39)]
Seconds = Annotated[float, Field(ge=0, le=MAX_SECONDS)]


class Session(BaseModel):
    """One process that trained a run: its code and its numerical environment."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    started: str | None = None
    """Time of the start in UTC."""
    vitcli: str | None = None
    commit: str | None = None
    """Commit of the code; None if it ran from an installed package."""
    dirty: bool | None = None
    torch: str | None = None
    device: str = "cpu"
    hardware: str | None = None
    cpu_capability: str | None = None
    threads: Count | None = None
    precision: str | None = None
    kernels: str | None = None


@dataclass(frozen=True, kw_only=True, config=ConfigDict(strict=True, extra="ignore"))
class RunRecord:
    """A run, read from its folder, from a saved trial, or from the document of a study.

    The last two know less of it. ``vitcli.load_run`` and ``vitcli.runs`` return it.
    """

    state: State
    reason: str = ""
    """Why it is in this state, in words; of a finished run, what its folder lacks."""
    name: str = ""
    """Name that commands accept, such as ``quickstart/train/seed0``."""
    path: Path | None = None
    """The run folder."""
    step: Count = 0
    """Number of steps at the last checkpoint."""
    status: str = ""
    """State in status.json, which says ``running`` also after a kill; empty if it is not known."""
    problems: tuple[str, ...] = ()
    """What is wrong in its files; each text begins with the name of a file."""

    experiment: str | None = None
    variant: str | None = None
    seed: int = 0
    config_hash: str = ""
    config: dict[str, Any] = field(default_factory=dict, repr=False)
    """The configuration as config.yaml states it. It is read without running own code."""
    typed: list[str] = field(default_factory=list)
    data: str | None = None
    data_hash: str = ""
    num_train: Count | None = None
    num_val: Count | None = None
    imported: str | None = None
    """File of imported weights."""
    timm: str | None = None
    new_head: bool | None = None
    """Whether the head was never trained: no epochs, and no trained head to start from."""
    plugins: dict[str, dict[str, str]] = field(default_factory=dict)
    """Plugins that it was trained with: name -> version and SHA-256 of its code."""
    init_sha256: str | None = None
    """Of the weights that it started from: of ``train.init``, or of its pre-training."""
    teacher_sha256: str | None = None
    """Of the weights of ``task.teacher``."""
    pretrained: dict[str, Any] | None = None
    teacher: dict[str, Any] | None = None
    inexact: list[str] = field(default_factory=list)
    """Why its bits differ from those of an uninterrupted run."""
    sessions: tuple[Session, ...] = ()
    """The processes that trained it; the first one began the training."""
    meta: dict[str, Any] = field(default_factory=dict, repr=False)
    """All of meta.json."""

    epochs: Count = 0
    """Number of epochs that were trained."""
    curve: Curve = field(default=(), repr=False)
    """(epoch, headline number), on the validation split if there is one."""
    metrics: SkipValidation[list[dict[str, Any]]] = field(default_factory=list, repr=False)
    """One entry per epoch, oldest first, with ``step``, ``epoch``, ``train_loss``, ..."""
    result: dict[str, Any] = field(default_factory=dict, repr=False)
    """Final numbers, such as ``test_accuracy`` (0 to 1), ``parameters`` and ``train_seconds``."""
    reached: dict[str, Any] = field(default_factory=dict, repr=False)
    """The same numbers of a training that ``--stop-after`` stopped, until it continues."""

    known_spec: Any = field(default=None, compare=False, repr=False)
    """The configuration; None if config.yaml cannot be read, or is not that of the training, or if
    it has own code."""
    settings: dict[str, Any] = field(default_factory=dict, repr=False)
    """Settings that differ from the experiment: dotted field -> value."""
    source: str = ""
    """Folder of saved trials that it is from; empty for a run folder."""
    images: Any = field(default=None, compare=False, repr=False)
    """PerImage: what the stored predictions of a finished trial say of each test image."""
    stored_predictions: str = field(default="", compare=False, repr=False)
    """The file with these predictions and, after a colon, their folder in it."""

    @property
    def folder(self) -> RunDir:
        if self.path is None:
            raise InputError(f"seed {self.seed} of {self.variant!r} has no run folder here")
        return RunDir(self.path)

    @property
    def spec(self) -> ExperimentSpec:
        """The configuration, with fields such as ``spec.model.depth``.

        Raises:
            InputError: config.yaml cannot be read.
        """
        return self.known_spec or self.folder.spec()

    def setting(self, name: str) -> Any:
        """Return a field of the configuration, such as ``train.epochs``; None if it has none."""
        return value_at(self.config, name)

    @property
    def known_config(self) -> ExperimentSpec | dict[str, Any] | None:
        """``known_spec``; that of a run with own code as plain data, because no code runs."""
        is_damaged = any(problem.startswith(CONFIG) for problem in self.problems)
        is_plain = is_read_raw(self.config) and not is_damaged
        return self.known_spec or (self.config if is_plain else None)

    @property
    def task_name(self) -> str:
        """The task in config.yaml; the default task if the file does not say."""
        name = self.setting("task.name")
        is_known = isinstance(name, str) and (name in TASKS or is_read_raw(self.config))
        return name if is_known else DEFAULT_TASK

    @property
    def task(self) -> TaskRow:
        row = self.known_spec.task.row if self.known_spec else _task_row(self.config)
        return with_headline(row, self.meta)

    @property
    def headline(self) -> Metric:
        return self.task.headline

    def metric_of(self, name: str) -> Metric | None:
        """Return the metric of a number, such as ``test_accuracy``; of own ones, as it states."""
        stated, bare = self.meta.get("metrics"), bare_name(name)
        own = stated_metric(stated.get(bare)) if isinstance(stated, dict) else None
        is_headline = bare == self.headline.name
        return metric_of(name) or own or (self.headline if is_headline else None)

    @property
    def has_result(self) -> bool:
        return self.state in RESULT_STATES

    @cached_property
    def numbers(self) -> dict[str, Any]:
        """Final numbers, or those reached so far."""
        numbers = dict(self.result or self.reached)
        if not numbers:
            for record in self.metrics:
                numbers |= {name: value for name, value in record.items() if value is not None}
            if "epoch" in numbers:
                numbers["epochs"] = numbers.pop("epoch")
        known = {k: v for k, v in numbers.items() if k == "precision" or is_number(v)}
        return {name: value for name, value in known.items() if is_possible(name, value)}

    def number(self, name: str) -> float | None:
        """Return a final number by its name in ``result``; None if it is not known."""
        value = self.result.get(name)
        return value if is_number(value) else None

    @property
    def test_score(self) -> float | None:
        """The task's headline number on the test images."""
        return self.numbers.get(f"test_{self.headline.name}")

    @property
    def val_score(self) -> float | None:
        """The task's headline number on the validation images."""
        return self.numbers.get(f"val_{self.headline.name}")

    @property
    def score(self) -> float | None:
        """The number that the run is judged by; that of a search is of the validation split."""
        return self.val_score if self.test_score is None else self.test_score

    @property
    def is_validation(self) -> bool:
        return self.test_score is None and self.val_score is not None

    @property
    def why_no_curve(self) -> str:
        """Why no epoch can be drawn; empty if one can."""
        if self.metrics:
            return ""
        if self.imported:
            return "its weights were imported, so its training is not known"
        problems = [problem for problem in self.problems if problem.startswith(METRICS)]
        return problems[0] if problems else f"no epoch was measured ({self.state})"

    @property
    def parameters(self) -> int | None:
        if count := self.numbers.get("parameters"):
            return int(count)
        recorded = self.meta.get("parameters")
        is_count = type(recorded) is int and is_possible("parameters", recorded)
        return recorded if is_count else None

    @property
    def flops(self) -> float | None:
        """Operations of the training, its pre-training and its teacher's own training."""
        return whole_flops(self.numbers)

    @property
    def train_seconds(self) -> float | None:
        return self.numbers.get("train_seconds")

    @property
    def images_per_second(self) -> float | None:
        return self.numbers.get("images_per_second")

    @property
    def temperature(self) -> float | None:
        """What the training ended with; divides the logits. None for a run without one."""
        value = self.result.get("temperature")
        return value if is_number(value) and value > 0 else None

    @property
    def thresholds(self) -> dict[str, float]:
        """Share -> least probability, with temperature 1, of a class in prediction sets of which
        this share holds the true class. Too few validation images give none."""
        prefix = "set_threshold_"
        names = (name for name in self.result if name.startswith(prefix))
        return {n.removeprefix(prefix): value for n in names if (value := self.number(n))}

    @property
    def precision(self) -> str | None:
        """The precision of the training, also of a diverged trial without a result."""
        return self.result.get("precision") or self.session.precision

    @property
    def kernels(self) -> str | None:
        return self.result.get("kernels")

    @property
    def session(self) -> Session:
        """The process that began the training."""
        return self.sessions[0] if self.sessions else Session()

    @property
    def is_dirty(self) -> bool:
        """Whether a part of the run was trained by other code than the run's commit."""
        return any(s.dirty or s.commit != self.session.commit for s in self.sessions)

    @property
    def epochs_planned(self) -> int | None:
        epochs = self.setting("train.epochs")
        return epochs if is_epoch(epochs) else None

    @property
    def started_from(self) -> str | None:
        """The run whose weights the training began with, or the weights that were imported."""
        if self.imported:
            return f"timm:{self.timm}" if self.timm else self.imported
        init = self.setting("train.init")
        return init if isinstance(init, str) else None

    @property
    def shown_settings(self) -> dict[str, Any]:
        first = {"from": self.started_from} if self.started_from else {}
        rest = {name: value for name, value in self.settings.items() if name != "train.init"}
        return first | rest

    @property
    def predictions(self) -> Any:
        """``Predictions``, or a named tuple of what a task without classes stores, in NumPy."""
        from vitcli.runner.run.predictions import read_predictions

        place = self.folder.path / "predictions.npz"
        predictions = read_predictions(place, self.state, self.task)
        try:
            self.read_images()
        except ValueError as error:
            raise InputError(f"{place}: {error}") from error
        return predictions

    def read_images(self) -> "PerImage | None":
        """Return what predictions.npz says of each test image; those of another run are refused."""
        from vitcli.runner.run.predictions import read_per_image

        images = read_per_image(self.folder.path / "predictions.npz", self.task)
        score = self.number(headline_key(self.result, self.headline.name))
        if images is None or score is None:
            return images
        count = len(images.scores)
        if abs(images.mean - score) > 1e-6 or count != self.result.get("num_test"):
            raise ValueError(
                f"{self.headline.label} {images.mean:.4f} of {count} images differs from {RESULT}"
            )
        return images

    def document(self) -> dict[str, Any]:
        """Return a row of a list of runs as JSON values."""
        return {
            "name": self.name,
            "path": None if self.path is None else str(self.path),
            "state": self.state,
            "reason": self.reason,
            "experiment": self.experiment,
            "variant": self.variant,
            "started_from": self.started_from,
            "data": self.data,
            "started": self.session.started,
            "epochs": self.numbers.get("epochs", self.epochs),
            "epochs_planned": self.epochs_planned,
            "metric": self.headline.name,
            "test_score": self.test_score,
            "val_score": self.val_score,
            "parameters": self.parameters,
            "flops": self.flops,
            "train_seconds": self.train_seconds,
            "seed": self.seed,
            "commit": self.session.commit,
            "dirty": self.is_dirty,
            "differs": self.settings,
        }

    def at_this_moment(self) -> "RunRecord":
        """Return the record with the present state of a training that says it is running."""
        if self.status != "running":
            return self
        state, reason = state_now(self.folder, self.status, "", self.problems)
        return self.changed(state=state, reason=reason)

    def changed(self, **changes: Any) -> "RunRecord":
        return replace(self, **changes)

    @property
    def _reason_of_training(self) -> str:
        # What a finished run lacks today is no result.
        return "" if self.state == "finished" else self.reason

    def entry(self) -> dict[str, Any]:
        """Return a trial's entry in the document of a study."""
        numbers = {name: value for name, value in self.result.items() if is_number(value)}
        measured = {name: numbers[name] for name in numbers if name not in SAVED_NUMBERS}
        return {
            **({"measured": measured} if measured else {}),
            "seed": self.seed,
            "state": self.state,
            "reason": self._reason_of_training,
            "config_hash": self.config_hash,
            "epochs": self.epochs,
            **{name: numbers.get(name) for name in MAIN_NUMBERS},
            "curve": [list(point) for point in self.curve],
        }

    def saved(self) -> dict[str, Any]:
        """Return the record of a saved trial, a line of ``seed0.jsonl``."""
        others = {k: v for k, v in self.result.items() if k not in SAVED_NUMBERS}
        result = {name: self.result.get(name) for name in SAVED_NUMBERS}
        result["parameters"] = self.parameters
        hashes = {"init_sha256": self.init_sha256, "teacher_sha256": self.teacher_sha256}
        return {
            "state": self.state,
            "reason": self._reason_of_training,
            "config_hash": self.config_hash,
            "seed": self.seed,
            "data_hash": self.data_hash,
            "num_train": self.num_train,
            "epochs": self.epochs,
            "curve": [list(point) for point in self.curve],
            "result": ({"measured": others} if others else {}) | result,
            "sessions": [session.model_dump(mode="json") for session in self.sessions],
            "is_inexact": bool(self.inexact),
            **{name: value for name, value in hashes.items() if value is not None},
        }


_OF_META = {item.name for item in fields(RunRecord)} - {
    *("state", "reason", "name", "path", "step", "status", "problems", "sessions", "meta"),
    *("epochs", "curve", "metrics", "result", "reached", "settings", "source", "images"),
    "known_spec",
    "stored_predictions",
}
"""Fields that meta.json states under the same name."""

ENTRY = ("state", "reason", "config_hash", "seed", "epochs", "curve")
"""Fields of a record in the document of a study, and in a saved trial."""


def as_record(value: Any) -> Any:
    """Return the record of a trial in the document of a study; a record is returned as it is."""
    if not isinstance(value, dict):
        return value
    measured = value.get("measured", {})
    if not isinstance(measured, dict):
        raise ValueError("measured is not a mapping")
    numbers = measured | {name: value[name] for name in MAIN_NUMBERS if name in value}
    numbers = {name: number for name, number in numbers.items() if number is not None}
    wrong = [name for name, number in numbers.items() if type(number) not in (int, float)]
    wrong += value.keys() - {*ENTRY, *MAIN_NUMBERS, "measured"}
    wrong += {"seed", "state", "config_hash"} - value.keys()
    if wrong or value["state"] in ("damaged", "saved"):
        raise ValueError(f"a trial's {wrong[0] if wrong else 'state'} is damaged")
    known = {name: value[name] for name in ENTRY if name in value}
    return RunRecord(result=numbers, **known)


def saved_record(
    value: Mapping[str, Any],
    config: Mapping[str, Any],
    source: str,
    spec: ExperimentSpec | None = None,
) -> RunRecord:
    """Return the record in a saved trial; ``config`` are its changed fields, dotted.

    ``spec`` is its whole configuration, if it is known: only this says what an own task measures.
    A value that vitcli does not write is a ValueError.
    """
    result = dict(value["result"])
    result |= result.pop("measured", {})
    result = {name: number for name, number in result.items() if number is not None}
    if problem := impossible_value(result):
        raise ValueError(problem)
    if wrong := [k for k, v in result.items() if not (is_number(v) or k in TEXTS)]:
        raise ValueError(f"its {wrong[0]} is {shorten(str(result[wrong[0]]), MAX_ECHO)}")
    names = (*ENTRY, "data_hash", "num_train", "init_sha256", "teacher_sha256")
    known = {name: value[name] for name in names if name in value}
    if type(value["seed"]) is not int or value["seed"] < 0:
        raise ValueError(f"its seed is {value['seed']}")
    if value["state"] not in RESULT_STATES or not value["sessions"]:
        raise ValueError(f"its state is {value['state']}, its sessions {len(value['sessions'])}")
    return RunRecord(
        **known,
        result=result,
        sessions=tuple(map(Session.model_validate, value["sessions"])),
        inexact=["a saved trial"] if value.get("is_inexact") else [],
        config={"task": {"name": config.get("task.name", DEFAULT_TASK)}},
        known_spec=spec,
        source=source,
    )


def read_record(run: RunDir | Path, spec: ExperimentSpec | None = None) -> RunRecord:
    """Return what the files of a run say. Nothing in them is an error, and no code is run.

    ``spec`` is the content of config.yaml, if it is known.
    """
    run = run if isinstance(run, RunDir) else RunDir(run)
    problems: list[str] = []
    meta: dict[str, Any] = _read(run, META, problems) or {}
    stored = {name: meta[name] for name in _OF_META & meta.keys() if meta[name] is not None}
    first = {name: meta[name] for name in Session.model_fields if name in meta}
    try:
        others = meta.get("sessions") or []
        sessions = tuple(map(Session.model_validate, [first, *others])) if meta else ()
    except (ValidationError, TypeError):
        problems.append(f"{META}: {WRONG_TYPE}")
        sessions = ()
    # A training that ends meanwhile writes its result first, so the status is read before it.
    found = _read(run, STATUS, problems) or {}
    result = _read_result(run, meta, problems)
    status, step, reason, reached = _status_of(run, found, result, problems)
    metrics: list[dict[str, Any]] = _read(run, METRICS, problems, _read_metrics) or []
    config: dict[str, Any] = {}
    if spec is None:
        config, spec = _read_config(run, meta, problems)
    imported = bool(meta.get("imported"))
    if status == "finished":
        problems += _missing_of_finished(run, metrics, None if imported else step, problems)
    config = spec.model_dump(mode="json") if spec else config
    values = {
        **stored,
        "name": run.name,
        "path": run.path,
        "status": status,
        "step": step,
        "config": config,
        "known_spec": spec,
        "sessions": sessions,
        "meta": meta,
        "metrics": metrics,
        "curve": headline_curve(metrics, spec or config, meta),
        "epochs": metrics[-1]["epoch"] if metrics else result.get("epochs", 0),
        "result": result,
        "reached": reached,
    }
    seed = spec.seed if spec else config.get("seed")
    name = spec.data.name if spec else value_at(config, "data.name")
    if type(seed) is int and isinstance(name, str):
        if stored.setdefault("seed", seed) != seed:
            problems.append(f"{META}: its seed is {shorten(str(stored['seed']), MAX_ECHO)}")
        values |= {"seed": seed, "data": name}
        if imported and "data" not in meta:  # weights that came without a data set
            values["data"] = None
    while True:
        state, why = state_now(run, status, reason, problems)
        try:
            is_whole = spec and "plugins" not in stored  # a spec has all of its parts
            why = why or ("" if is_whole else missing_plugin(config, stored.get("plugins", ())))
            why = why or (run.checkpoint_problem(step) if state == "finished" and step else "")
            return RunRecord(state=state, reason=why, problems=tuple(problems), **values)
        except ValidationError as error:
            problems.append(f"{META}: {WRONG_TYPE}")
            for name in {str(item["loc"][0]) for item in error.errors()}:
                del values[name]


def _missing_of_finished(
    run: RunDir, metrics: Sequence[Mapping[str, Any]], step: int | None, problems: Sequence[str]
) -> list[str]:
    """Return which files of a finished run are missing, or end before its last step.

    Imported weights, without a step, have no result.
    """
    needed = [META] if step is None else [META, RESULT] + [METRICS] * (step > 0)
    missing = [f"{name}: it is missing" for name in needed if not (run.path / name).exists()]
    named = {problem.partition(":")[0] for problem in (*problems, *missing)}
    if step and METRICS not in named and [line["step"] for line in metrics][-1:] != [step]:
        missing.append(f"{METRICS}: it does not reach step {step}")
    return missing


def _read_result(run: RunDir, meta: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
    result: dict[str, Any] = _read(run, RESULT, problems) or {}
    version = re.match(r"(\d+)\.(\d+)", str(meta.get("vitcli")))
    is_old = version is None or (int(version[1]), int(version[2])) < (0, 7)
    is_hashed = "sha256" in result or is_old or not result  # 0.7 and newer add a hash
    if problem := impossible_value(result) if is_hashed else "it does not match its hash":
        problems.append(f"{RESULT}: {problem}")
        return {}
    return result


def load_run(run: str | Path) -> RunRecord:
    """Return a run: its configuration, state, metrics, result, predictions and model.

    It says what the files say now; of a run that still trains, read it again.

    Args:
        run: A run folder, a name under runs/ such as ``quickstart``, or a bundled model.

    Raises:
        UserError: There is no such run, or the name means several runs.
    """
    return read_record(find_run(str(run)))


def _read(
    run: RunDir, name: str, problems: list[str], read: Callable[[Path], Any] = read_json
) -> Any:
    """Return the content of a file; None if it is missing or, which is a problem, damaged."""
    try:
        if (content := read(run.path / name)) == {}:
            raise ValueError("it holds nothing")
        return content
    except FileNotFoundError:
        pass
    except OSError as error:
        problems.append(f"{name}: {UNREADABLE}: {error.strerror}")
    except ValueError as error:
        problems.append(f"{name}: {error}")
    return None


def _status_of(
    run: RunDir, status: Mapping[str, Any], result: Mapping[str, Any], problems: list[str]
) -> tuple[str, int, str, dict[str, Any]]:
    """Return state, step, reason and the numbers reached.

    Without a readable status.json, a result with a hash counts, which is written last.
    """
    state, step, reached = status.get("state"), status.get("step"), status.get("reached")
    if state in get_args(Status) and type(step) is int and is_possible("step", step):
        if not isinstance(reached, dict) or impossible_value(reached):
            reached = {}
        return str(state), step, str(status.get("reason") or ""), reached
    if status:
        problems.append(f"{STATUS}: its state or step is not a known one")
    if "sha256" in result:
        return "finished", run.last_step(), "", {}
    return "", 0, "unknown", {}


def _read_metrics(path: Path) -> list[dict[str, Any]]:
    return parse_metrics(read_bounded(path, MAX_METRICS).decode())


def parse_metrics(text: str) -> list[dict[str, Any]]:
    """Return the records of a metrics.jsonl without an incomplete last line, or a ValueError."""
    lines = [line for line in text.split("\n")[:-1] if line.strip()]
    records = _parse_records(",".join(lines))  # at once: a large study has 100,000 lines
    if len(records) == len(lines):
        for before, after in pairwise(record["step"] for record in records):
            if after <= before:
                raise ValueError(f"step {after} follows step {before}")
        return records
    number = next((i for i, line in enumerate(lines, start=1) if len(_parse_records(line)) != 1), 0)
    raise ValueError(f"line {number} is not a record")


def _parse_records(text: str) -> list[dict[str, Any]]:
    """Return the records in JSON with commas in between; none if one of them is not a record."""
    try:
        records: list[Any] = parse_strict_json(f"[{text}]")
    except ValueError:
        return []
    return records if all(map(_is_record, records)) else []


def _is_record(record: Any) -> bool:
    return (
        isinstance(record, dict)
        and type(record.get("step")) is int
        and is_epoch(record.get("epoch"))
        and all(value is None or is_number(value) for value in record.values())
    )


def _read_config(
    run: RunDir, meta: Mapping[str, Any], problems: list[str]
) -> tuple[dict[str, Any], ExperimentSpec | None]:
    """Return the configuration as plain data and, without own code, checked.

    None of both if it cannot be read, or is not that of the training.
    """
    spec = None
    try:
        config = run.config()
        if not is_read_raw(config):
            spec = run.spec()
        now = run.config_sha256()
    except (UserError, OSError) as error:
        if isinstance(error, OSError):
            problems.append(f"{CONFIG}: {UNREADABLE}: {error.strerror}")
            return {}, None
        reason = str(error).splitlines()[0].removeprefix(str(run.path / CONFIG)).lstrip(": ")
        problems.append(f"{CONFIG}: {'line ' if reason[:1].isdecimal() else ''}{reason}")
        return {}, None
    # Old runs do not record the hash; a comment, or other blanks, change no field.
    recorded = meta.get("config_sha256")
    if recorded in (None, now):  # to write YAML takes longer than all the rest
        return config, spec
    if recorded == sha256((config_text(spec) if spec else dump(config)).encode()):
        return config, spec
    problems.append(f"{CONFIG}: {EDITED}")
    return config, None


def state_now(run: RunDir, status: str, reason: str, problems: Sequence[str]) -> tuple[Any, str]:
    """Return state and reason. A "running" run that no process holds was interrupted.

    A training that a signal or ``--stop-after`` ends writes "interrupted" into status.json itself.
    """
    if problems:
        return "damaged", "; ".join(problems)
    if status == "running" and not run.is_in_use():
        return "interrupted", "its process is gone"
    return status or "failed", reason


def refuse_unreadable(run: RunDir) -> None:
    """Refuse files that cannot be read, for example without permission: they are not damaged."""
    for name in FILES:
        try:
            open_regular(run.path / name).close()
        except (FileNotFoundError, ValueError):
            pass
        except OSError as error:
            raise InputError(f"{run.path / name}: cannot be read: {error.strerror}") from error


def whole_flops(costs: Mapping[str, Any]) -> float | None:
    """Return the operations of a training, its pre-training and its teacher's own training.

    None if those of the training are not known, as in older runs. ``train_flops`` has those of a
    teacher's outputs already.
    """
    own = costs.get("train_flops") or 0
    if own <= 0:
        return None
    return float(
        own + sum(costs.get(f"{part}_flops") or 0 for part in ("pretrain", "teacher_train"))
    )


def curve(records: Sequence[Mapping[str, Any]], name: str) -> tuple[tuple[int, float], ...]:
    """Return (epoch, number) of each line of metrics.jsonl that has both."""
    return tuple(
        (record["epoch"], record[name])
        for record in records
        if is_epoch(record.get("epoch")) and is_number(record.get(name))
    )


def headline_curve(
    records: Sequence[Mapping[str, Any]],
    config: ExperimentSpec | Mapping[str, Any],
    meta: Mapping[str, Any],
) -> tuple[tuple[int, float], ...]:
    """Return (epoch, headline number); none without a configuration."""
    if isinstance(config, ExperimentSpec):
        row, has_val = config.task.row, config.data.val_split
    else:
        row, has_val = _task_row(config), value_at(config, "data.val_split")
    split = "val" if has_val else "test"
    return curve(records, f"{split}_{with_headline(row, meta).headline.name}") if config else ()


def _task_row(config: Mapping[str, Any]) -> TaskRow:
    """Return the row of the task in a plain configuration; no code runs for an own task."""
    task = config.get("task")
    task = task if isinstance(task, Mapping) else {}
    row = built_in(TASKS, task.get("name", DEFAULT_TASK))
    if row is None:
        own: dict[str, Any] = {"about": "own code", "headline": UNKNOWN, "classifies": False}
        return replace(TASKS[DEFAULT_TASK], **(own if is_read_raw(config) else {}))
    try:
        known: Any = row.spec_class.model_validate(task)
    except ValidationError:
        return row
    stated: TaskRow = known.row
    return stated


def with_headline(row: TaskRow, meta: Mapping[str, Any]) -> TaskRow:
    """Return the row of a task with the headline that a run of own code states."""
    headline = stated_metric(meta.get("headline"))
    if headline is None or (headline.name == row.headline.name and row.headline is not UNKNOWN):
        return row
    return replace(row, headline=headline)


def stated_metric(stated: Any) -> Metric | None:
    """Return a metric that meta.json states; None if it does not, or not in full."""
    plain = Metric(name="", label="")
    if not isinstance(stated, dict):
        return None
    known: dict[str, Any] = {name: stated.get(name) for name in HEADLINE}
    if type(known["scale"]) is int:
        known["scale"] = float(known["scale"])
    is_sound = all(type(value) is type(getattr(plain, name)) for name, value in known.items())
    return Metric(**known) if is_sound and known["digits"] in range(20) else None


def is_epoch(value: Any) -> TypeGuard[int]:
    return type(value) is int and 0 <= value <= MAX_EPOCH


def is_number(value: Any) -> TypeGuard[float]:
    """Return whether a value is a number that a double can hold; true and false are none."""
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < MAX_NUMBER
    )


def impossible_value(result: Mapping[str, Any]) -> str:
    """Return which value of a result no training has; empty if there is none."""
    wrong = (name for name, value in result.items() if not is_possible(name, value))
    return next((f"its {name} is {shorten(str(result[name]), MAX_ECHO)}" for name in wrong), "")


def is_possible(name: str, value: Any) -> bool:
    """Return whether a result can have this value; of names that are not known, any."""
    if name in TEXTS:
        return isinstance(value, str)
    if name in COUNTS:
        return type(value) is int and 0 <= value < 2**63
    metric = metric_of(name)
    is_cost = name.endswith(COST_ENDINGS) and not name.startswith(("test_", "val_"))
    if not (metric or is_cost):
        return True
    if value is None:
        return name != "train_seconds"
    if not is_number(value) or (name.endswith("seconds") and value >= MAX_SECONDS):
        return False
    return metric.is_possible(value) if metric else value >= 0


def headline_key(result: Mapping[str, Any], name: str) -> str:
    """Return the key in result.json of the number that a run is judged by.

    A run of a search measures no test image, so that it is judged by its validation split.
    """
    return f"{'val' if result.get('num_test') == 0 else 'test'}_{name}"


def thread_mismatch(sessions: Sequence[Session], threads: int) -> str:
    """Return why a trial used other threads than the study; empty if the threads match."""
    used = {session.threads or threads for session in sessions}
    if not sessions or sessions[0].device != "cpu" or used == {threads}:
        return ""
    return f"trained with {quantity(max(used - {threads}), 'thread')}; the study uses {threads}"


def metric_facts(metric: Metric) -> dict[str, Any]:
    return {name: getattr(metric, name) for name in HEADLINE}


def run_metadata(
    experiment: Experiment,
    data: "DataSet",
    numerical_environment: dict[str, Any],
    meta: dict[str, Any],
    command: str | None = None,
) -> dict[str, Any]:
    """Return the content of meta.json: ``meta`` of a resumed run, with one more session."""
    session = {
        "command": command or shlex.join(["vitcli", *sys.argv[1:]]),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        **numerical_environment,
    }
    if "experiment" in meta:
        return meta | {"sessions": [*meta.get("sessions", []), session]}
    spec = experiment.spec
    own = {row.name: metric_facts(row) for row in own_metrics()}
    plugins = plugins_of(spec.model_dump(mode="json"))
    return {
        "experiment": experiment.name,
        "variant": experiment.variant,
        "config_hash": config_hash(spec),
        "typed": [name for name in STATISTICS if getattr(spec.data, name) is not None],
        "data": data.name,
        "data_hash": data.data_hash,
        "num_train": len(data.train),
        "num_val": len(data.val) if data.val else 0,
        "num_test": len(data.test),
        "seed": spec.seed,
        **({"headline": metric_facts(spec.task.row.headline)} if spec.code or plugins else {}),
        **({"plugins": plugins} if plugins else {}),
        **({"metrics": own} if own else {}),
        **session,
        "sessions": [],
        **meta,
    }


def named_as_run(experiment: Experiment) -> Experiment:
    """Return an experiment under the name of the run whose config.yaml it is.

    The name is that of the run's experiment; a trial has its variant, too. So a run that is
    trained from the config.yaml of another run is not called ``config``.
    """
    meta = read_record(experiment.path.parent).meta
    name = "-".join(
        meta[key] for key in ("experiment", "variant") if isinstance(meta.get(key), str)
    )
    if not name or not name.isprintable() or set(name) & set("/\\") or name[0] in ".-~":
        return experiment
    return replace(experiment, name=name, changed=True)


def describe_other_images(recorded_hash: str | None, data: "DataSet") -> str | None:
    """Return how the images differ from a training's (RUN was trained on ...), or None."""
    if not recorded_hash or recorded_hash == data.data_hash:
        return None
    return f"other images or groups (hash {recorded_hash[:12]}, now {data.data_hash[:12]})"
