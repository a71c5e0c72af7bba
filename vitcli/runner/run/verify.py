"""`vitcli runs verify`: check the files of a run."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from vitcli.runner.errors import InputError, UserError
from vitcli.runner.experiment.own_code import FOLDER, read_copy, stored_code
from vitcli.runner.run import folder
from vitcli.runner.run.checkpoint import load_checkpoint
from vitcli.runner.run.predictions import BROKEN_ARCHIVE
from vitcli.runner.run.record import UNKNOWN, UNREADABLE, RunRecord, headline_key, read_record
from vitcli.runner.run.split import read_sides


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


def verify_run(run: folder.RunDir) -> list[Verdict]:
    record = read_record(run)
    is_finished = record.status == "finished" and not record.imported
    needed = [folder.CONFIG, folder.STATUS, folder.META]
    needed += [folder.METRICS] if record.step and not record.imported else []
    needed += [folder.RESULT] if is_finished else []
    verdicts = [_record_verdict(record, name) for name in needed]
    verdicts[4:4] = [*_checkpoint_verdicts(run, record.step), *_code_verdicts(record)]
    if is_finished and not run.is_bundled and record.result.get("num_test") != 0:
        verdicts.append(_verdict("predictions.npz", record.read_images))
    if (run.path / folder.SPLIT).exists():
        verdicts.append(_verdict(folder.SPLIT, partial(read_sides, run)))
    return verdicts + [
        Verdict(str(path.relative_to(run.path)), "incomplete", "left by a killed process")
        for path in folder.temporary_files(run.path)
    ]


def _record_verdict(record: RunRecord, name: str) -> Verdict:
    if not (record.folder.path / name).exists():
        return Verdict(name, "missing")
    for problem in record.problems:
        file, _, reason = problem.partition(": ")
        if file == name:
            return Verdict(name, "unreadable" if UNREADABLE in reason else "damaged", reason)
    score = headline_key(record.result, record.headline.name)
    scores = {score} if record.headline is not UNKNOWN else set()
    keys = {folder.META: {"experiment", "data_hash"}, folder.RESULT: {"num_test"} | scores}
    values = {folder.META: record.meta, folder.RESULT: record.result}
    if lacking := sorted(keys.get(name, set()) - values.get(name, {}).keys()):
        return Verdict(name, "damaged", f"it lacks {lacking[0]}")
    return Verdict(name, "ok")


def _verdict(name: str, check: Callable[[], object]) -> Verdict:
    try:
        check()
    except FileNotFoundError:
        return Verdict(name, "missing")
    except (UserError, *BROKEN_ARCHIVE) as error:
        is_forbidden = PermissionError in map(type, (error, error.__cause__))
        state = "unreadable" if is_forbidden else "damaged"
        return Verdict(name, state, str(error) or type(error).__name__)
    return Verdict(name, "ok")


def _code_verdicts(record: RunRecord) -> list[Verdict]:
    """Return a verdict on each copy of own code; who has removed one names the file again."""
    copies = record.folder.path / FOLDER
    return [
        _verdict(f"{FOLDER}/{name}".rstrip("/"), partial(_check_code, copies, name, digest))
        for name, digest in stored_code(record.config).items()
        if (copies / name).exists()
    ]


def _check_code(copies: Path, name: str, digest: str) -> None:
    if not read_copy(copies, name).has(digest):
        raise ValueError("it was changed after the run began")


def _checkpoint_verdicts(run: folder.RunDir, last_step: int) -> list[Verdict]:
    folders = folder.step_folders(run.checkpoints)
    verdicts = [
        _verdict(f"checkpoints/{path.name}", partial(_check_checkpoint, path))
        if (path / folder.MANIFEST).exists()
        else Verdict(f"checkpoints/{path.name}", "incomplete", "without a manifest")
        for path in sorted(folders, key=lambda path: int(path.name), reverse=True)
    ]
    # status.json is written after the checkpoint
    if last_step > run.last_step():
        verdicts = [verdict for verdict in verdicts if verdict.name != f"checkpoints/{last_step}"]
        verdicts.insert(0, Verdict(f"checkpoints/{last_step}", "missing", "its manifest is gone"))
    return verdicts


def _check_checkpoint(path: Path) -> None:
    for name, tensor in load_checkpoint(path).tensors.items():
        if tensor.isnan().any():  # a mask may be infinite
            raise InputError(f"{name} has values that are not numbers")
