"""`vitcli runs verify`: read every file of a run, and say which of them can be relied on."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import get_args

from vitcli.core.tasks.rows import task_row
from vitcli.runner.errors import ConfigError, InputError, UserError
from vitcli.runner.files import sealed
from vitcli.runner.run.checkpoint import load_checkpoint
from vitcli.runner.run.folder import MANIFEST, RunDir, State, temporaries
from vitcli.runner.run.predictions import BROKEN_ARCHIVE, recomputed


@dataclass(frozen=True)
class Verdict:
    """One file or checkpoint of a run."""

    name: str
    state: str
    """``ok``, ``damaged``, ``missing``, or ``incomplete``: left by a kill, never used."""
    reason: str = ""

    @property
    def is_bad(self) -> bool:
        return self.state in ("damaged", "missing")


def verify_run(run: RunDir) -> list[Verdict]:
    """A verdict about each file that a run of this state has."""
    imported = bool(run.read("meta.json").get("imported"))
    finished = run.status()["state"] == "finished" and not imported
    verdicts = [
        _verdict("config.yaml", partial(_config, run)),
        _verdict("status.json", partial(_status, run)),
        _verdict("meta.json", partial(_json, run, "meta.json", {"experiment", "data_hash"})),
        *([] if imported else [_verdict("metrics.jsonl", partial(_metrics, run, finished))]),
        *_checkpoints(run),
    ]
    if finished:
        keys, is_sealed = {_headline(run), "num_test"}, _has_sealed_result(run)
        result = partial(_json, run, "result.json", keys, is_sealed=is_sealed)
        verdicts.append(_verdict("result.json", result))
        if not run.is_bundled:
            verdicts.append(_verdict("predictions.npz", partial(_predictions, run)))
    return verdicts + [
        Verdict(str(path.relative_to(run.path)), "incomplete", "left by a killed process")
        for path in temporaries(run.path)
    ]


def _verdict(name: str, read: Callable[[], object]) -> Verdict:
    try:
        read()
    except FileNotFoundError:
        return Verdict(name, "missing")
    except UserError as error:
        return Verdict(name, "damaged", str(error))
    except BROKEN_ARCHIVE as error:
        return Verdict(name, "damaged", str(error) or type(error).__name__)
    return Verdict(name, "ok")


def _config(run: RunDir) -> None:
    """It must be the one that the run was begun with."""
    run.spec()
    if run.read("meta.json").get("config_sha256", own := run.config_sha256()) != own:
        raise ValueError("it is not the one of the run any more")


def _status(run: RunDir) -> None:
    _json(run, "status.json", {"state", "step"})
    if run.read("status.json")["state"] not in get_args(State):
        raise ValueError("there is no such state")


def _has_sealed_result(run: RunDir) -> bool:
    """Whether the vitcli that trained it was one that gives result.json a hash."""
    version = str(run.read("meta.json").get("vitcli", "0")).split(".")
    return all(part.isdecimal() for part in version) and [int(part) for part in version] >= [0, 7]


def _json(run: RunDir, name: str, keys: set[str], *, is_sealed: bool = False) -> None:
    """An object with these keys, and with the hash of the others if it holds one."""
    content = (run.path / name).read_bytes()
    value = json.loads(content)
    if not isinstance(value, dict) or not keys <= value.keys():
        raise ValueError(f"without {', '.join(sorted(keys))}")
    seal = value.pop("sha256", None)
    if (seal or is_sealed) and content != sealed(value):
        raise ValueError("it does not match its hash")


def _metrics(run: RunDir, finished: bool) -> None:
    """They must go up to the last step of a finished run."""
    records, step = run.metrics(), run.status()["step"]
    if finished and step and (not records or records[-1]["step"] != step):
        raise ValueError(f"it does not reach step {step}")


def _headline(run: RunDir) -> str:
    """Return the key in result.json of the number that the run's task is judged by."""
    try:
        return f"test_{task_row(run.spec()).headline.name}"
    except ConfigError:  # a damaged config.yaml has a verdict of its own
        return "num_test"


def _predictions(run: RunDir) -> None:
    """Check that the predictions agree with result.json."""
    row = task_row(run.spec())
    found = recomputed((run.path / "predictions.npz").read_bytes(), row)
    if found is None:
        return
    result, (value, count) = run.read("result.json"), found
    if abs(value - result[_headline(run)]) > 1e-6 or count != result["num_test"]:
        raise ValueError(f"they give {row.headline.label} {value:.4f}, result.json has another")


def _checkpoints(run: RunDir) -> list[Verdict]:
    """Newest first; one without a manifest was never complete."""
    folders = [path for path in run.checkpoints.glob("*") if path.name.isdecimal()]
    verdicts = [
        _verdict(f"checkpoints/{path.name}", partial(_checkpoint, path))
        if (path / MANIFEST).exists()
        else Verdict(f"checkpoints/{path.name}", "incomplete", "without a manifest")
        for path in sorted(folders, key=lambda path: int(path.name), reverse=True)
    ]
    promised = run.status()["step"]  # written after its checkpoint, never before
    if promised > run.last_step():
        verdicts = [verdict for verdict in verdicts if verdict.name != f"checkpoints/{promised}"]
        verdicts.insert(0, Verdict(f"checkpoints/{promised}", "missing", "its manifest is gone"))
    return verdicts


def _checkpoint(path: Path) -> None:
    for name, tensor in load_checkpoint(path).tensors.items():
        if not tensor.isfinite().all():
            raise InputError(f"{name} has values that are not finite")
