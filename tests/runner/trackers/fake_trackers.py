"""Live trackers for tests, which the process of a tracker imports by name."""

import json
import time
from pathlib import Path

from vitcli.runner.trackers.exported import ExportedRun, Point


class Notes:
    """Write each call as a line of JSON into ``notes.jsonl``."""

    def __init__(self, run: ExportedRun, folder: Path, known: str | None, offline: bool) -> None:
        self.id, self.where = known or f"id of {run.name}", "look here"
        self.file = folder / "notes.jsonl"
        self.note("begin", known)

    def note(self, what: str, value: object) -> None:
        with self.file.open("a") as file:
            file.write(json.dumps([what, value]) + "\n")

    def log(self, point: Point) -> None:
        self.note("log", point.epoch)

    def finish(self, run: ExportedRun) -> None:
        self.note("finish", run.state)


class CannotBegin(Notes):
    def __init__(self, *words: object) -> None:
        raise RuntimeError("no API key")


class FailsLater(Notes):
    def log(self, point: Point) -> None:
        if (point.epoch or 0) > 2:
            raise ConnectionError("the server is gone")
        super().log(point)


class Hangs(Notes):
    def log(self, point: Point) -> None:
        time.sleep(600)
