"""The results of measure.py as one file, and the state of unfinished trainings as files of 15 MiB.

Both files fit where only a few small files can be copied, such as from a machine that is lent for
minutes.
"""

import io
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path

from vitcli.runner.files import commit
from vitcli.runner.run.folder import RunDir, steps
from vitcli.runner.run.record import read_record

RESULTS = "results.tar.gz"
STATE = "state.tar"
PIECE = 15 * 2**20
RUN_FILES = ("config.yaml", "meta.json", "status.json", "metrics.jsonl")
"""What a run needs to continue, beside its newest checkpoint."""


def pack(out: Path, folder: Path, say: Callable[[str], None]) -> None:
    """Write the results in ``out``, and the state of its unfinished runs, into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    results = [*out.glob("*.json"), *out.glob("*.log"), *out.glob("trials/**/*.*")]
    commit(folder / RESULTS, archive(out, results, "w:gz"))
    states = [path for run in unfinished_runs(out) for path in state_files(run)]
    content = archive(out, states, "w") if states else b""
    pieces = [content[i : i + PIECE] for i in range(0, len(content), PIECE)]
    for path in folder.glob(f"{STATE}.*"):
        path.unlink()
    for i, piece in enumerate(pieces):
        commit(folder / f"{STATE}.{i}", piece)
    size = (folder / RESULTS).stat().st_size
    say(
        f"packed: results {mebibytes(size)}, state {mebibytes(len(content))} in {len(pieces)} files"
    )


def unpack(folder: Path, out: Path) -> None:
    """Fill an empty ``out`` with what ``pack`` wrote; do nothing if it holds results."""
    if any(out.glob("*.json")):
        return
    pieces = sorted(folder.glob(f"{STATE}.*"), key=lambda path: int(path.suffix[1:]))
    contents = [(folder / RESULTS).read_bytes()] if (folder / RESULTS).exists() else []
    contents += [b"".join(path.read_bytes() for path in pieces)] if pieces else []
    for content in contents:
        with tarfile.open(fileobj=io.BytesIO(content)) as tar:
            if hasattr(tarfile, "data_filter"):  # not before Python 3.11.4
                tar.extraction_filter = tarfile.data_filter
            tar.extractall(out)


def archive(root: Path, paths: Iterable[Path], mode: str) -> bytes:
    """Return a tar of files, with names relative to ``root`` and without names of users."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as tar:  # type: ignore[call-overload]
        for path in sorted(paths):
            tar.add(path, path.relative_to(root), filter=without_owner)
    return buffer.getvalue()


def without_owner(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


def unfinished_runs(out: Path) -> list[RunDir]:
    runs = [RunDir(path.parent) for path in out.glob("runs/**/config.yaml")]
    return [run for run in runs if not read_record(run).has_result]


def state_files(run: RunDir) -> list[Path]:
    """Return the files with which a run continues elsewhere; none without a checkpoint."""
    newest = [run.checkpoints / str(step) for step in steps(run.checkpoints)[:1]]
    own = [run.path / name for name in RUN_FILES if newest and (run.path / name).exists()]
    return own + [path for folder in newest for path in folder.iterdir()]


def mebibytes(count: int) -> str:
    return f"{count / 2**20:.1f} MiB"
