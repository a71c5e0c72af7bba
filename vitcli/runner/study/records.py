"""Records of trials with a result: the fields that a study reads, checked. No torch."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from vitcli.core.spec import Spec
from vitcli.core.spec.base import AcceptsList
from vitcli.core.spec.task import TaskRow
from vitcli.runner.run.compare import readable_metrics
from vitcli.runner.run.folder import RunDir
from vitcli.runner.study.result import Numbers, as_pairs, assign_fields
from vitcli.runner.text import quantity

Count = Annotated[int, Field(ge=0, lt=2**63)]
Measured = Annotated[float, Field(ge=-1e39, le=1e39)]
"""A number of a task or a cost. fp32 holds no larger one."""
Seconds = Annotated[float, Field(ge=0, le=1e10)]
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
    typed: list[str] = Field(default_factory=list)
    inexact: list[str] = Field(default_factory=list)
    sessions: list[Session] = Field(default_factory=list)


class Result(Numbers):
    """The fields of result.json that a study reads. A diverged trial has none of them."""

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


class Epoch(BaseModel):
    """A line of metrics.jsonl."""

    model_config = ConfigDict(frozen=True, strict=True, extra="allow", allow_inf_nan=False)

    epoch: int


class TrialRecord(Spec):
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

    @property
    def precision(self) -> str | None:
        """Return the precision of the training, also for a diverged trial without a result."""
        return self.result.precision or self.sessions[0].precision


COSTS = ("train_flops", "pretrain_flops", "pretrain_seconds")
"""Numbers of result.json that are not the task's, and that a trial may lack."""


def read_result(stored: dict[str, Any], row: TaskRow) -> Result:
    """Return the fields of result.json that a study reads, including the task's numbers."""
    names = [f"{split}_{name}" for split in ("test", "val") for name in row.numbers]
    names += COSTS
    numbers = {name: stored[name] for name in names if stored.get(name) is not None}
    return Result.model_validate(stored | assign_fields(Result, numbers))


def read_record(
    run: RunDir, state: Any, reason: str, meta: Meta, *, row: TaskRow, has_val: bool
) -> TrialRecord:
    """Return the record of a run folder.

    Raises:
        ValidationError: A file has missing or wrong fields.
    """
    curve = f"{'val' if has_val else 'test'}_{row.headline.name}"
    epochs = [Epoch.model_validate(line) for line in readable_metrics(run)]
    points = [(each.epoch, (each.model_extra or {}).get(curve)) for each in epochs]
    return TrialRecord(
        state=state,
        reason=reason,
        config_hash=meta.config_hash or "",
        seed=meta.seed or 0,
        data_hash=meta.data_hash or "",
        num_train=meta.num_train,
        epochs=epochs[-1].epoch if epochs else 0,
        curve=tuple((epoch, value) for epoch, value in points if value is not None),
        result=read_result(run.read("result.json") if state == "finished" else {}, row),
        sessions=(Session(**meta.model_dump(include=set(Session.model_fields))), *meta.sessions),
        is_inexact=bool(meta.inexact),
    )


def thread_mismatch(sessions: Sequence[Session], threads: int) -> str:
    """Return why a trial used other threads than the study; empty if the threads match."""
    used = {session.threads or threads for session in sessions}
    if sessions[0].device != "cpu" or used == {threads}:
        return ""
    return f"trained with {quantity(max(used - {threads}), 'thread')}; the study uses {threads}"
