"""Run commands in stages, within budgets, and keep a result and a log of each.

A stage has parts; a part is one command. The result of a part is written as soon as its command
ends, so nothing that comes later can lose it. A part that is done is not run again. measure.py
names the stages.
"""

import contextlib
import datetime
import json
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vitcli.runner.files import commit, commit_json
from vitcli.runner.text import duration, portable

ROOT = Path(__file__).resolve().parents[2]
GRACE = 30.0
"""Seconds that a stopped command has to save its state before it is killed."""
LONGEST = 7 * 24 * 3600.0
"""Seconds that a command is given if no budget limits it."""
LEAST = 20.0
"""Least seconds of a budget with which another part begins."""
POLL = 0.2
NO_RESULT = "the command ended without a readable result"
LOG_CHARACTERS = 200_000
"""Maximum length of a log; its end is kept."""
ERROR = re.compile(r"(error|[\w.]*(Error|Exception)): |(FAILED|ERROR) tests/")
Facts = dict[str, Any]
State = Literal["done", "stopped", "failed", "skipped", "left"]


@dataclass(frozen=True, kw_only=True)
class Part:
    """A command with one result. In its words, RESULT and TIME stand for a file and a budget."""

    name: str
    command: list[str]
    """If a word contains RESULT, the command writes its result there, otherwise to stdout."""
    uses_data: bool = False
    read: Callable[[str], Any] = json.loads
    accepted: tuple[int, ...] = (0,)
    """Exit codes of a command that has done its work."""
    unfinished: tuple[int, ...] = (128 + signal.SIGTERM,)
    """Exit codes of a command that was stopped and can continue."""
    progress: Callable[[], str] = str
    """Returns how far a stopped command is."""
    skipped: str = ""
    """Why the part cannot run here; empty if it can."""


@dataclass(frozen=True)
class Stage:
    """Parts that share a budget in seconds."""

    name: str
    seconds: float
    parts: list[Part]


@dataclass(frozen=True)
class Outcome:
    """What became of a part or a stage, and why."""

    state: State
    reason: str = ""

    def __str__(self) -> str:
        name = {"left": "partly, left", "stopped": "partly"}.get(self.state, self.state)
        return f"{name}: {self.reason}" if self.reason else name


class StageRunner:
    """Runs stages and writes NAME.json and NAME.log of each part into a folder.

    Args:
        out: The folder.
        facts: Facts about the machine that each result file repeats.
        places: Folder -> the word that stands for it in result files and logs.
        again: Run parts that are done, too.
        seconds: The budget of all stages together.
        after_part: Called after each part that ran.
        say: Shows a line.
        clock: Returns the time in seconds.
    """

    def __init__(
        self,
        out: Path,
        facts: Facts,
        *,
        places: dict[str, str] | None = None,
        again: bool = False,
        seconds: float = math.inf,
        after_part: Callable[[], None] = lambda: None,
        say: Callable[[str], None] = lambda line: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.out, self.facts, self.again = out, facts, again
        self.after_part, self.say, self.clock = after_part, say, clock
        self.ends_at = clock() + seconds
        self.places = {str(out): "OUT", f"{ROOT}/": "", sys.executable: "python"} | (places or {})

    def run(self, stage: Stage) -> Outcome:
        """Run the parts of a stage that are not done yet."""
        ends_at = self.clock() + stage.seconds
        return summarize({part.name: self._take(stage, part, ends_at) for part in stage.parts})

    def _take(self, stage: Stage, part: Part, ends_at: float) -> Outcome:
        """Run a part, unless it is done, cannot run, or has no time left."""
        before = self._stored(part)
        if before == "done" and not self.again:
            return Outcome("done")
        if part.skipped:
            return Outcome("skipped", part.skipped)
        if min(ends_at, self.ends_at) - self.clock() < LEAST:
            return Outcome("left", part.progress())
        began = self.clock()
        self.say(f"{part.name}: {self._shown(part)}")
        outcome, value = self._run(part, ends_at)
        seconds = self.clock() - began
        if before != "done" or outcome.state == "done":  # a failure does not replace a result
            self._store(stage, part, outcome, seconds, value)
        self.say(f"{part.name}: {outcome} ({duration(seconds)})")
        self.after_part()
        return outcome

    def _stored(self, part: Part) -> str:
        """Return the state of a part as stored for the same command; empty without one."""
        try:
            found = json.loads((self.out / f"{part.name}.json").read_text())
        except (OSError, ValueError):
            return ""
        return str(found["state"]) if found["command"] == self._shown(part) else ""

    def _store(
        self, stage: Stage, part: Part, outcome: Outcome, seconds: float, value: Any
    ) -> None:
        facts = self.facts if part.uses_data else {**self.facts, "data_hash": None}
        document = {
            "stage": stage.name,
            "part": part.name,
            "state": outcome.state,
            "reason": outcome.reason,
            "command": self._shown(part),
            "date": datetime.date.today().isoformat(),
            "seconds": round(seconds, 1),
            **facts,
            "result": value,
        }
        commit_json(self.out / f"{part.name}.json", self._clean(document))

    def _run(self, part: Part, ends_at: float) -> tuple[Outcome, Any]:
        """Run the command of a part; return its outcome and what it measured, None if nothing."""
        log, target = (self.out / f"{part.name}.{ending}" for ending in ("log", "part"))
        left = min(ends_at, self.ends_at) - self.clock() - GRACE / 2
        words = {"RESULT": str(target), "TIME": f"{min(max(1, left), LONGEST):.0f}s"}
        command = [re.sub("|".join(words), lambda m: words[m[0]], word) for word in part.command]
        own_file = any("RESULT" in word for word in part.command)
        with log.open("wb") as errors, target.open("wb") as answer:
            code, is_late = self._execute(command, errors if own_file else answer, errors, ends_at)
        text = self._hide(log.read_text(errors="replace"))[-LOG_CHARACTERS:]
        commit(log, text.encode())
        value = read_result(part, target)
        target.unlink()
        if code in part.accepted:
            return Outcome("done") if value is not None else Outcome("failed", NO_RESULT), value
        if is_late or code in part.unfinished:
            return Outcome("stopped", part.progress() or "stopped"), value
        return Outcome("failed", error_of(text) or f"exit code {code}"), value

    def _execute(
        self, command: list[str], answer: Any, errors: Any, ends_at: float
    ) -> tuple[int, bool]:
        """Run a command; return its exit code and whether it was stopped.

        Ctrl-C or SIGTERM stops the command, and no other begins. A command is stopped with SIGTERM,
        which only its first process gets: that one stops the others.
        """
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=answer,
            stderr=errors,
            start_new_session=True,
        )
        try:
            while process.poll() is None and self.clock() < min(ends_at, self.ends_at):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(POLL)
        except KeyboardInterrupt:
            self.ends_at = -math.inf
        try:
            is_late = process.poll() is None
            if is_late:
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(GRACE)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        code = process.wait()
        return (code if code >= 0 else 128 - code), is_late

    def _shown(self, part: Part) -> str:
        """Return the command of a part without folders of this machine."""
        text = self._hide(shlex.join(part.command))
        return text.removeprefix("python -m ") if "-m vitcli" in text else text

    def _hide(self, text: str) -> str:
        """Return a text without the folders of this machine."""
        for place in sorted(self.places, key=len, reverse=True):
            text = re.sub(rf"(?<![\w.~-]){re.escape(place)}", self.places[place], text)
        return text

    def _clean(self, value: Any) -> Any:
        """Return a value without folders of this machine."""
        if isinstance(value, dict):
            return {name: self._clean(each) for name, each in value.items()}
        if isinstance(value, list):
            return [self._clean(each) for each in value]
        return portable(self._hide(value)) if isinstance(value, str) else value


def read_result(part: Part, target: Path) -> Any:
    """Return what a command measured; None if it has written nothing readable."""
    try:
        value = part.read(target.read_text())
        json.dumps(value, allow_nan=False)
    except (OSError, ValueError, KeyError, SyntaxError, StopIteration):
        return None
    return value


def error_of(log: str) -> str:
    """Return the first line of the last error in a log, or else the last line."""
    lines = [line for line in map(str.strip, log.splitlines()) if line]
    errors = [line for line in lines if ERROR.match(line)]
    return (errors or lines or [""])[-1]


def summarize(outcomes: dict[str, Outcome]) -> Outcome:
    """Return what became of a stage, given its parts."""
    states = {outcome.state for outcome in outcomes.values()}

    def name_all(*chosen: State) -> list[str]:
        return [
            describe(name, outcome, alone=len(outcomes) == 1)
            for name, outcome in outcomes.items()
            if outcome.state in chosen
        ]

    if states == {"skipped"}:
        return Outcome("skipped", next(iter(outcomes.values())).reason)
    left = ", ".join(name_all("stopped", "left", "skipped"))
    if failed := "; ".join(name_all("failed")):
        return Outcome("failed", f"{failed}; left: {left}" if left else failed)
    return Outcome("left", left) if left else Outcome("done")


def describe(name: str, outcome: Outcome, alone: bool) -> str:
    """Return a part and its reason; the name is left out if the stage has no other part."""
    if not outcome.reason:
        return name
    return outcome.reason if alone else f"{name} ({outcome.reason})"
