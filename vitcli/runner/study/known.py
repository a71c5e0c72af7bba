"""Results of trials as they were read before, so that unchanged files are not read again.

A file counts as unchanged while its size and its time of modification are the same. What is stored
here can be deleted at any time.
"""

import base64
import contextlib
import io
import json
import os
import time
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from vitcli.runner.files import commit, sha256
from vitcli.runner.run.folder import FILES, RunDir
from vitcli.runner.study.definition import KNOWN, Trial
from vitcli.runner.study.images import PerImage
from vitcli.runner.study.records import TrialRecord
from vitcli.version import __version__

FORMAT = f"1 vitcli {__version__}"
SETTLED_NS = 2_000_000_000
"""A file that changed less than this before it was read may change again at the same time."""
RECORDS = TypeAdapter(dict[str, TrialRecord])

Signature = list[list[int]]
ReadImages = Callable[[], PerImage | None]


class KnownTrials:
    """The trials of a study that had a result when they were last read.

    Args:
        root: The study's folder.
        threads: CPU threads of a trial; other trials are not known.
    """

    def __init__(self, root: Path, threads: int) -> None:
        self._path, self._threads = root / KNOWN, threads
        self._entries: dict[str, dict[str, Any]] = {}
        self._records: dict[str, TrialRecord] = {}
        self._labels: dict[str, str] = {}
        self._has_changed = False
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            self._read()

    def _read(self) -> None:
        digest, body = self._path.read_bytes().split(b"\n", 1)
        content = json.loads(body) if digest.decode() == sha256(body) else {}
        if (content["format"], content["threads"]) == (FORMAT, self._threads):
            self._records = RECORDS.validate_python(content["records"], strict=False)
            self._entries, self._labels = content["trials"], content["labels"]

    def find(self, trial: Trial, files: Signature) -> tuple[TrialRecord, ReadImages] | None:
        """Return the record of a trial and how to read its images; None if its files changed."""
        entry = self._entries.get(trial.folder)
        if not entry or (entry["key"], entry["files"]) != (_key(trial), files):
            return None
        labels = self._labels.get(entry["labels"])
        return self._records[trial.folder], partial(_decoded, entry["scores"], labels)

    def add(
        self, trial: Trial, files: Signature, record: TrialRecord, images: PerImage | None
    ) -> None:
        """Remember a trial with a result, unless its files may just be changing.

        Args:
            trial: The trial.
            files: The signature of its files before they were read.
            record: What they say.
            images: What they say of each test image.
        """
        if max(changed for changed, _ in files) > time.time_ns() - SETTLED_NS:
            return
        scores = key = ""
        if images:
            scores, labels = _encoded(images.scores), _encoded(images.labels)
            self._labels[key := sha256(labels.encode())] = labels
        self._records[trial.folder] = record
        entry = {"key": _key(trial), "files": files, "scores": scores, "labels": key}
        self._entries[trial.folder] = entry
        self._has_changed = True

    def write(self) -> None:
        """Store what is known now. It is no loss if that fails."""
        if not self._has_changed:
            return
        content = {
            "format": FORMAT,
            "threads": self._threads,
            "labels": self._labels,
            "records": RECORDS.dump_python(self._records, mode="json"),
            "trials": self._entries,
        }
        body = json.dumps(content, separators=(",", ":")).encode()
        with contextlib.suppress(OSError):
            commit(self._path, sha256(body).encode() + b"\n" + body)


def signature(run: RunDir) -> Signature:
    """Return the time of modification and the size of each file of a run; zeros for none."""
    found = []
    for name in FILES:
        try:
            stat = os.stat(run.path / name)
        except OSError:
            found.append([0, 0])
        else:
            found.append([stat.st_mtime_ns, stat.st_size])
    return found


def _key(trial: Trial) -> str:
    return f"{trial.config_hash}/{trial.spec.seed}"


def _encoded(array: NDArray[np.generic]) -> str:
    with io.BytesIO() as file:
        np.save(file, array, allow_pickle=False)
        return base64.b64encode(zlib.compress(file.getvalue(), 1)).decode()


def _decoded(scores: str, labels: str | None) -> PerImage | None:
    if not scores or labels is None:
        return None
    arrays = [
        np.load(io.BytesIO(zlib.decompress(base64.b64decode(each))), allow_pickle=False)
        for each in (scores, labels)
    ]
    return PerImage(*arrays)
