"""`vitcli runs verify`: check the files of a run."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import get_args

from vitcli.runner.errors import ConfigError, InputError, UserError
from vitcli.runner.experiment.own_code import FOLDER, code_to_keep
from vitcli.runner.experiment.own_code import MAX_BYTES as MAX_CODE
from vitcli.runner.files import read_bounded, read_json, sha256
from vitcli.runner.run.checkpoint import load_checkpoint
from vitcli.runner.run.folder import (
    MANIFEST,
    RunDir,
    State,
    headline_key,
    step_folders,
    temporary_files,
)
from vitcli.runner.run.predictions import BROKEN_ARCHIVE, MAX_BYTES, per_image, read_outputs


@dataclass(frozen=True)
class Verdict:
    """The verdict on one file or checkpoint of a run."""

    name: str
    state: str
    """``ok``, ``damaged``, ``missing``, ``unreadable`` (the rights of the file forbid it), or
    ``incomplete`` (left by a killed process, not used)."""
    reason: str = ""

    @property
    def is_bad(self) -> bool:
        return self.state in ("damaged", "missing", "unreadable")


def verify_run(run: RunDir) -> list[Verdict]:
    """Return a verdict on each file that a run in this state must have."""
    imported = bool(run.read("meta.json").get("imported"))
    finished = run.status()["state"] == "finished" and not imported
    verdicts = [
        _verdict("config.yaml", run.trained_spec),
        _verdict("status.json", partial(_check_status, run)),
        _verdict("meta.json", partial(_check_json, run, "meta.json", {"experiment", "data_hash"})),
        *([] if imported else [_verdict("metrics.jsonl", partial(_check_metrics, run, finished))]),
        *_checkpoint_verdicts(run),
        *_code_verdicts(run),
    ]
    if finished:
        keys = {_headline_key(run), "num_test"}
        verdicts.append(_verdict("result.json", partial(_check_json, run, "result.json", keys)))
        if not run.is_bundled and run.read("result.json").get("num_test") != 0:
            verdicts.append(_verdict("predictions.npz", partial(_check_predictions, run)))
    return verdicts + [
        Verdict(str(path.relative_to(run.path)), "incomplete", "left by a killed process")
        for path in temporary_files(run.path)
    ]


def _verdict(name: str, check: Callable[[], object]) -> Verdict:
    """Run a check of a file and return the verdict."""
    try:
        check()
    except FileNotFoundError:
        return Verdict(name, "missing")
    except (UserError, *BROKEN_ARCHIVE) as error:
        is_forbidden = PermissionError in map(type, (error, error.__cause__))
        state = "unreadable" if is_forbidden else "damaged"
        return Verdict(name, state, str(error) or type(error).__name__)
    return Verdict(name, "ok")


def _code_verdicts(run: RunDir) -> list[Verdict]:
    """Return a verdict on each copy of own code; who has removed one names the file again."""
    try:
        code = code_to_keep(run.spec())
    except ConfigError:  # a damaged config.yaml has a verdict of its own
        return []
    return [
        _verdict(f"{FOLDER}/{name}", partial(_check_code, run.path / FOLDER / name, digest))
        for name, digest in code.items()
        if (run.path / FOLDER / name).exists()
    ]


def _check_code(path: Path, digest: str) -> None:
    if sha256(read_bounded(path, MAX_CODE)) != digest:
        raise ValueError("it was changed after the run began")


def _check_status(run: RunDir) -> None:
    _check_json(run, "status.json", {"state", "step"})
    if run.read("status.json")["state"] not in get_args(State):
        raise ValueError("its state is not a known one")


def _check_json(run: RunDir, name: str, keys: set[str]) -> None:
    value = run.read_result() if name == "result.json" else read_json(run.path / name)
    if not keys <= value.keys():
        raise ValueError(f"it lacks one of {', '.join(sorted(keys))}")


def _check_metrics(run: RunDir, finished: bool) -> None:
    """Check metrics.jsonl; in a finished run it must reach the last step."""
    records, step = run.metrics(), run.status()["step"]
    if finished and step and (not records or records[-1]["step"] != step):
        raise ValueError(f"it does not reach step {step}")


def _headline_key(run: RunDir) -> str:
    try:
        return headline_key(run.read("result.json"), run.spec().task.row.headline.name)
    except ConfigError:  # a damaged config.yaml has a verdict of its own
        return "num_test"


def _check_predictions(run: RunDir) -> None:
    """Check that the predictions agree with result.json."""
    arrays = read_outputs(read_bounded(run.path / "predictions.npz", MAX_BYTES))
    try:
        row = run.spec().task.row
    except ConfigError:  # config.yaml has a verdict of its own
        return
    found = per_image(arrays, row)
    if found is None:
        return
    result, value, count = run.read("result.json"), found.mean, len(found.scores)
    if not {_headline_key(run), "num_test"} <= result.keys():  # it has a verdict of its own
        return
    if abs(value - result[_headline_key(run)]) > 1e-6 or count != result["num_test"]:
        raise ValueError(
            f"{row.headline.label} {value:.4f} of {count} images differs from result.json"
        )


def _checkpoint_verdicts(run: RunDir) -> list[Verdict]:
    """Return a verdict on each checkpoint, newest first."""
    folders = step_folders(run.checkpoints)
    verdicts = [
        _verdict(f"checkpoints/{path.name}", partial(_check_checkpoint, path))
        if (path / MANIFEST).exists()
        else Verdict(f"checkpoints/{path.name}", "incomplete", "without a manifest")
        for path in sorted(folders, key=lambda path: int(path.name), reverse=True)
    ]
    last_step = run.status()["step"]  # status.json is written after the checkpoint
    if last_step > run.last_step():
        verdicts = [verdict for verdict in verdicts if verdict.name != f"checkpoints/{last_step}"]
        verdicts.insert(0, Verdict(f"checkpoints/{last_step}", "missing", "its manifest is gone"))
    return verdicts


def _check_checkpoint(path: Path) -> None:
    for name, tensor in load_checkpoint(path).tensors.items():
        if not tensor.isfinite().all():
            raise InputError(f"{name} has values that are not finite")
