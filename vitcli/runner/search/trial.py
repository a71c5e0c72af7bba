"""The result of a trial of a search, from its run folder. No torch and no Optuna."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from vitcli.core.spec import ExperimentSpec, Spec
from vitcli.runner.errors import InputError
from vitcli.runner.experiment.config import config_hash
from vitcli.runner.run.folder import RunDir
from vitcli.runner.run.record import readable_metrics
from vitcli.runner.study.result import as_pairs

TRIALS = "trials"
"""Folder of the run folders, in that of the search."""
RESULT, RULE, FAILED = "result", "rule", "failed"
"""Attributes of a trial in the storage: its result, the rule that its point breaks, and why it has
no result."""


class SearchTrial(Spec):
    """The result of one training of one configuration."""

    point: dict[str, Any]
    """Dotted field -> value."""
    config_hash: str
    seed: int
    state: Literal["finished", "diverged", "pruned"]
    reason: str = ""
    score: float | None = None
    """Headline number on the validation split after the last epoch."""
    curve: Annotated[tuple[tuple[int, float], ...], BeforeValidator(as_pairs)] = ()
    """(epoch, score)."""
    parameters: int = Field(ge=0)
    forward_flops: int = Field(ge=0)
    train_flops: int | None = Field(None, ge=0)
    train_seconds: float | None = Field(None, ge=0)
    data_hash: str = ""
    num_train: int | None = None
    num_val: int | None = None
    threads: int | None = None
    precision: str | None = None
    hardware: str | None = None
    torch: str | None = None
    commit: str | None = None

    @property
    def folder(self) -> str:
        return f"{TRIALS}/{self.config_hash[:12]}/seed{self.seed}"


def trial_folder(spec: ExperimentSpec) -> str:
    return f"{TRIALS}/{config_hash(spec)[:12]}/seed{spec.seed}"


def read_curve(run: RunDir, spec: ExperimentSpec) -> list[tuple[int, float]]:
    """Return (epoch, score) of each evaluation so far."""
    key = f"val_{spec.task.row.headline.name}"
    lines = readable_metrics(run)
    return [(int(line["epoch"]), line[key]) for line in lines if line.get(key) is not None]


def read_trial(
    root: Path, point: Mapping[str, Any], spec: ExperimentSpec, sizes: Any, *, is_pruned: bool
) -> SearchTrial | None:
    """Return the result in a trial's run folder; None if there is none.

    Args:
        sizes: Its ``parameters`` and ``forward_flops``, which a diverged run does not state.
    """
    run = RunDir(root / trial_folder(spec))
    try:
        return _read(run, point, spec, sizes, is_pruned=is_pruned)
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{run.path}: damaged; restore it, or delete it") from error


def _read(
    run: RunDir, point: Mapping[str, Any], spec: ExperimentSpec, sizes: Any, *, is_pruned: bool
) -> SearchTrial | None:
    digest, meta, status = config_hash(spec), run.read("meta.json"), run.status()
    if (meta.get("config_hash"), meta.get("seed")) != (digest, spec.seed):
        return None
    result = run.read("result.json") if status["state"] == "finished" else {}
    score, curve = result.get(f"val_{spec.task.row.headline.name}"), read_curve(run, spec)
    state, reason = "finished", ""
    if status["state"] == "diverged":
        state, reason, score = "diverged", status["reason"], None
    elif score is None and is_pruned and curve:
        epoch, score = curve[-1]
        state, reason = "pruned", f"stopped after epoch {epoch}"
    elif score is None:
        return None
    names = ("threads", "precision", "hardware", "torch", "commit", "num_train", "num_val")
    facts: dict[str, Any] = {name: meta.get(name) for name in names}
    return SearchTrial(
        point=dict(point),
        config_hash=digest,
        seed=spec.seed,
        state=state,  # type: ignore[arg-type]
        reason=reason,
        score=score,
        curve=tuple(curve),
        parameters=sizes.parameters,
        forward_flops=sizes.forward_flops,
        train_flops=result.get("train_flops") or sizes.train_flops,
        train_seconds=result.get("train_seconds"),
        data_hash=meta.get("data_hash") or "",
        **facts,
    )
