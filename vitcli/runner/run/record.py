"""The records of a run: meta.json, result.json and metrics.jsonl, written and read. No torch."""

import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeGuard

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
)

from vitcli.core.spec import ExperimentSpec, Spec
from vitcli.core.spec.base import AcceptsList, as_tuple
from vitcli.core.spec.task import TaskRow
from vitcli.runner.errors import InputError
from vitcli.runner.experiment.config import STATISTICS, Experiment, config_hash
from vitcli.runner.files import open_regular
from vitcli.runner.run.folder import FILES, MAX_SECONDS, RunDir, is_possible
from vitcli.runner.text import quantity

if TYPE_CHECKING:
    from vitcli.core.data.source import DataSet
    from vitcli.runner.run.predictions import PerImage

State = Literal["finished", "diverged", "failed", "interrupted", "running", "stale", "missing"]
"""Of a trial. Only ``finished`` trials have numbers; they and ``diverged`` ones have a result."""
MAX_EPOCH = 10**9
NO_TEST = {"without_test": True, "num_test": 0}
"""Entries in meta.json of a run that measures validation images only."""


def as_pairs(value: Any) -> Any:
    """Return a list of lists as a tuple of tuples; return other values unchanged."""
    return tuple(as_tuple(pair) for pair in value) if isinstance(value, list) else value


class Numbers(Spec):
    """A record with fields for the numbers of most tasks, and room for other numbers."""

    measured: dict[str, float] = Field(default_factory=dict)
    """Numbers of a task that have no field of their own; omitted from files if empty."""

    def number(self, name: str) -> float | None:
        """Return a number by its name in result.json; None if it is not known."""
        found = self.measured.get(name)
        return getattr(self, name, None) if found is None else found

    @model_serializer(mode="wrap")
    def _omit_empty(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data: dict[str, Any] = handler(self)
        if not data.get("measured"):
            data.pop("measured", None)
        return data


def assign_fields(kind: type[Numbers], numbers: Mapping[str, float]) -> dict[str, Any]:
    """Return numbers as keyword arguments of a record: in their own fields, or in ``measured``."""
    own = {name: value for name, value in numbers.items() if name in kind.model_fields}
    others = {name: value for name, value in numbers.items() if name not in own}
    return own | ({"measured": others} if others else {})


Count = Annotated[int, Field(ge=0, lt=2**63)]
Measured = Annotated[float, Field(ge=-1e39, le=1e39)]
"""A number of a task or a cost. fp32 holds no larger one."""
Seconds = Annotated[float, Field(ge=0, le=MAX_SECONDS)]
Share = Annotated[float, Field(ge=0, le=1)]


class Session(BaseModel):
    """One process that trained a run: its code and its numerical environment."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    started: str | None = None
    vitcli: str | None = None
    commit: str | None = None
    dirty: bool | None = None
    torch: str | None = None
    device: str = "cpu"
    hardware: str | None = None
    cpu_capability: str | None = None
    threads: Count | None = None
    precision: str | None = None
    kernels: str | None = None


class Meta(Session):
    """The fields of meta.json that a study reads."""

    config_hash: str | None = None
    seed: int | None = None
    data_hash: str | None = None
    num_train: int | None = None
    parameters: Count | None = None
    init_sha256: str | None = None
    """Of the weights of ``train.init``; None in older runs."""
    teacher_sha256: str | None = None
    """Of the weights of ``task.teacher``; None in older runs."""
    pretrained: dict[str, Any] | None = None
    teacher: dict[str, Any] | None = None
    typed: list[str] = Field(default_factory=list)
    inexact: list[str] = Field(default_factory=list)
    sessions: list[Session] = Field(default_factory=list)


class Result(Numbers):
    """The fields of result.json that a study reads. A diverged trial has the parameters alone."""

    model_config = ConfigDict(extra="ignore")

    measured: dict[str, Measured] = Field(default_factory=dict)
    test_accuracy: Share | None = None
    test_loss: Measured | None = None
    train_loss: Measured | None = None
    val_accuracy: Share | None = None
    train_seconds: Seconds | None = None
    images_per_second: Measured | None = Field(None, ge=0)
    parameters: Count | None = None
    forward_flops: Count | None = None
    num_test: Count | None = None
    precision: str | None = None
    kernels: str | None = None


class Record(Spec):
    """The files of a finished or diverged trial, as far as a study reads them."""

    state: Literal["finished", "diverged"]
    reason: str = ""
    config_hash: str
    seed: Count
    data_hash: str = ""
    num_train: Count | None = None
    epochs: Count
    """Number of epochs that were trained."""
    curve: Annotated[tuple[tuple[Count, float], ...], BeforeValidator(as_pairs)] = ()
    """(epoch, accuracy), on the validation split if there is one."""
    result: Result
    sessions: Annotated[tuple[Session, ...], Field(min_length=1), AcceptsList]
    """The first session began the training."""
    is_inexact: bool = False
    init_sha256: str | None = None
    """Of the weights of ``train.init``; omitted from files if not known."""
    teacher_sha256: str | None = None
    """Of the weights of ``task.teacher``; omitted from files if not known."""

    @property
    def precision(self) -> str | None:
        """Return the precision of the training, also for a diverged trial without a result."""
        return self.result.precision or self.sessions[0].precision


@dataclass(frozen=True, kw_only=True)
class TrialState:
    """A trial's state, the reason for it, and the record if the trial has a result."""

    state: State
    reason: str = ""
    record: Record | None = None
    source: str = ""
    """Folder of the saved trial with this record; empty for the trial's own folder."""
    images: "PerImage | None" = field(default=None, compare=False)
    """What the stored predictions of a finished trial say of each test image."""
    predictions: str = field(default="", compare=False)
    """The file with these predictions and, after a colon, their folder in it."""


COSTS = (
    *("train_flops", "pretrain_flops", "pretrain_seconds"),
    *("teacher_flops", "teacher_train_flops"),
)
"""Numbers of result.json that are not the task's, and that a trial may lack."""


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


def read_result(stored: dict[str, Any], row: TaskRow) -> Result:
    """Return the fields of result.json that a study reads, including the task's numbers."""
    names = [f"{split}_{name}" for split in ("test", "val") for name in row.numbers]
    names += COSTS
    numbers = {name: stored[name] for name in names if stored.get(name) is not None}
    return Result.model_validate(stored | assign_fields(Result, numbers))


def strict_metrics(run: RunDir) -> list[dict[str, Any]]:
    """Return the records of metrics.jsonl, which have an epoch, and numbers or None."""
    records = run.metrics()
    for record in records:
        kinds = {type(value) for value in record.values()}
        if not is_epoch(record.get("epoch")) or not kinds <= {int, float, type(None)}:
            raise InputError(f"{run.path / 'metrics.jsonl'}: step {record['step']} is damaged")
    return records


def curve(records: Sequence[Mapping[str, Any]], name: str) -> tuple[tuple[int, float], ...]:
    """Return (epoch, number) of each line of metrics.jsonl that has both."""
    return tuple(
        (each["epoch"], each[name])
        for each in records
        if is_epoch(each.get("epoch")) and is_number(each.get(name))
    )


def headline_curve(
    records: Sequence[Mapping[str, Any]], spec: ExperimentSpec
) -> tuple[tuple[int, float], ...]:
    split = "val" if spec.data.val_split else "test"
    return curve(records, f"{split}_{spec.task.row.headline.name}")


def is_epoch(value: Any) -> TypeGuard[int]:
    return type(value) is int and 0 <= value <= MAX_EPOCH


def is_number(value: Any) -> TypeGuard[float]:
    """Return whether a value is a number that a double can hold; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def stored_temperature(run: RunDir) -> float | None:
    """Return the temperature that a run's training ended with; None for a run without one."""
    found = run.read("result.json").get("temperature")
    return found if is_number(found) and found > 0 else None


def refuse_unreadable(run: RunDir) -> None:
    """Refuse files that cannot be read, for example without permission: they are not damaged."""
    for name in FILES:
        try:
            open_regular(run.path / name).close()
        except (FileNotFoundError, ValueError):
            pass
        except OSError as error:
            raise InputError(f"{run.path / name}: cannot be read: {error.strerror}") from error


def read_record(
    run: RunDir,
    spec: ExperimentSpec,
    state: Any,
    reason: str,
    meta: Meta,
    records: Sequence[Mapping[str, Any]],
) -> Record:
    """Return the record of a run of ``spec`` with the lines ``records`` in its metrics.jsonl."""
    return Record(
        state=state,
        reason=reason,
        config_hash=meta.config_hash or "",
        seed=meta.seed or 0,
        data_hash=meta.data_hash or "",
        num_train=meta.num_train,
        epochs=records[-1]["epoch"] if records else 0,
        curve=headline_curve(records, spec),
        result=read_result(
            run.read("result.json") if state == "finished" else {"parameters": meta.parameters},
            spec.task.row,
        ),
        sessions=(Session(**meta.model_dump(include=set(Session.model_fields))), *meta.sessions),
        is_inexact=bool(meta.inexact),
        init_sha256=meta.init_sha256,
        teacher_sha256=meta.teacher_sha256,
    )


def thread_mismatch(sessions: Sequence[Session], threads: int) -> str:
    """Return why a trial used other threads than the study; empty if the threads match."""
    used = {session.threads or threads for session in sessions}
    if sessions[0].device != "cpu" or used == {threads}:
        return ""
    return f"trained with {quantity(max(used - {threads}), 'thread')}; the study uses {threads}"


def readable_metrics(run: RunDir) -> list[dict[str, Any]]:
    """Return the records of metrics.jsonl; an empty list if the file is damaged."""
    try:
        return run.metrics()
    except InputError:
        return []


def last_measures(run: RunDir) -> dict[str, Any]:
    found = run.read("result.json") or run.reached() or _last_records(run)
    known = {k: v for k, v in found.items() if k == "precision" or isinstance(v, int | float)}
    return {name: value for name, value in known.items() if is_possible(name, value)}


def _last_records(run: RunDir) -> dict[str, Any]:
    measured: dict[str, Any] = {}
    for record in readable_metrics(run):
        measured |= {name: value for name, value in record.items() if value is not None}
    if "epoch" in measured:
        measured["epochs"] = measured.pop("epoch")
    return measured


def run_metadata(
    experiment: Experiment,
    data: "DataSet",
    numerical_environment: dict[str, Any],
    meta: dict[str, Any],
    command: str | None = None,
) -> dict[str, Any]:
    """Return the content of meta.json.

    A resumed run keeps its entries and gains one entry in ``sessions``.

    Args:
        meta: The previous content; {} for a new run.
        command: The command that started the run; by default that of this process.
    """
    session = {
        "command": command or shlex.join(["vitcli", *sys.argv[1:]]),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        **numerical_environment,
    }
    if "experiment" in meta:
        return meta | {"sessions": [*meta.get("sessions", []), session]}
    spec = experiment.spec
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
        **session,
        "sessions": [],
        **meta,
    }


def named_as_run(experiment: Experiment) -> Experiment:
    """Return an experiment under the name of the run whose config.yaml it is.

    The name is that of the run's experiment; a trial has its variant, too. So a run that is
    trained from the config.yaml of another run is not called ``config``. Experiments from other
    files are returned as they are.
    """
    if experiment.path.name != "config.yaml":
        return experiment
    meta = RunDir(experiment.path.parent).read("meta.json")
    name = "-".join(
        meta[key] for key in ("experiment", "variant") if isinstance(meta.get(key), str)
    )
    if not name or not name.isprintable() or set(name) & set("/\\") or name[0] in ".-~":
        return experiment
    return replace(experiment, name=name, changed=True)


def describe_other_images(recorded_hash: str | None, data: "DataSet") -> str | None:
    """Return how the images differ from those of a training; None if they are the same.

    The text completes a sentence such as ``RUN was trained on ...``.

    Args:
        recorded_hash: ``data_hash`` in the run's meta.json; empty or None if it has none.
    """
    if not recorded_hash or recorded_hash == data.data_hash:
        return None
    return f"other images (hash {recorded_hash[:12]}, now {data.data_hash[:12]})"
