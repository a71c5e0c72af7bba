"""What the engines of a cluster share: trials far away, and what their files say about them.

The machine of a trial writes the trial's events into a file of the study's folder. The scheduler is
asked only whether it still has the trial. What became of the trial, its own files say.
"""

import json
import os
import time
import uuid
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from vitcli.core.spec.task import TASKS
from vitcli.runner.engines.engine import MAX_ATTEMPTS, Job, Setup
from vitcli.runner.engines.node import CONTROL, EVENTS, SHARED, STOP, NodeTrial, Place, read_token
from vitcli.runner.files import commit, make_folder
from vitcli.runner.run.folder import RESULT_STATES, RunDir, headline_key
from vitcli.runner.train.events import Ended, Message, Started, TrialEvent, from_line

POLL_SECONDS = 0.5
"""Time between two looks at the files of the running trials."""


@dataclass
class Ticket:
    """A trial that a scheduler has, and how far its file of events has been read."""

    job: Job
    key: str
    id: str = ""
    """The scheduler's name of the trial."""
    offset: int = 0
    end: Ended | None = None
    """The last end in the file of events."""


class RemoteEngine:
    """The part of an engine that does not depend on the scheduler."""

    poll_seconds = POLL_SECONDS
    outlives_driver = False

    def __init__(self, root: Path, jobs: Sequence[Job], setup: Setup) -> None:
        self.root, self.setup, self.cluster = root.resolve(), setup, setup.cluster
        self.waiting = deque(jobs)
        self.active: dict[str, Ticket] = {}
        self.stopping = False
        self.place = Place(root=str(self.root), token=self._token(), folder=os.getcwd())

    def _token(self) -> str:
        make_folder(self.root / "logs")
        if not read_token(self.root):
            commit(self.root / SHARED, uuid.uuid4().hex.encode())
        return read_token(self.root)

    def open(self) -> Iterator[TrialEvent]:
        """Connect to the scheduler; yield messages about it."""
        raise NotImplementedError

    def submit(self, tickets: Sequence[Ticket]) -> Iterator[TrialEvent]:
        """Hand trials to the scheduler; yield messages about it."""
        raise NotImplementedError

    def gone(self, tickets: Sequence[Ticket]) -> dict[str, str]:
        """Return folder -> why, for the trials that the scheduler does not have any more."""
        raise NotImplementedError

    def cancel(self, tickets: Sequence[Ticket]) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Disconnect from the scheduler."""

    def add(self, job: Job) -> None:
        """Add a job, which is submitted at the next look."""
        self.waiting.append(job)

    def stop(self, *, leave: bool = False) -> None:
        """Start no further trial; running trials save a checkpoint."""
        self.stopping = True
        self.waiting.clear()
        self._take_back()

    def _take_back(self) -> None:
        for ticket in self.active.values():
            (self.root / CONTROL.format(ticket.key)).write_text(STOP)
        if self.active:
            self.cancel(list(self.active.values()))

    def events(self, tick: Callable[[], None]) -> Generator[TrialEvent, None, None]:
        """Yield every event of every trial until no trial is left; call ``tick`` in between."""
        try:
            yield from self.open()
            while self.waiting or self.active:
                tick()
                yield from self._submit_waiting()
                for ticket in list(self.active.values()):
                    yield from self._read(ticket)
                yield from self._look_for_ends()
                if self.active:
                    time.sleep(self.poll_seconds)
        finally:
            self._take_back()
            self.close()

    def trial(self, ticket: Ticket) -> NodeTrial:
        """Return what the machine of a trial must know."""
        return NodeTrial(
            place=self.place,
            job=ticket.job,
            key=ticket.key,
            threads=self.setup.threads,
            request=dict(self.setup.request),
        )

    def _submit_waiting(self) -> Iterator[TrialEvent]:
        room = len(self.waiting)
        if self.setup.count:
            room = min(room, self.setup.count - len(self.active))
        tickets = []
        for _ in range(room):
            job = self.waiting.popleft()
            key = f"{job.folder.replace('/', '.')}-{uuid.uuid4().hex[:8]}"
            tickets.append(Ticket(job, key))
            (self.root / CONTROL.format(key)).touch()
        if tickets:
            self.active |= {ticket.job.folder: ticket for ticket in tickets}
            yield from self.submit(tickets)

    def _read(self, ticket: Ticket) -> Iterator[TrialEvent]:
        """Yield the new events of a trial. Its end is noted, and told once it has left."""
        try:
            with (self.root / EVENTS.format(ticket.key)).open("rb") as file:
                file.seek(ticket.offset)
                content = file.read()
        except FileNotFoundError:
            return
        whole = content[: content.rfind(b"\n") + 1]
        ticket.offset += len(whole)
        for line in whole.decode().splitlines():
            try:
                found = from_line(line)
            except json.JSONDecodeError:  # a machine went down while it wrote
                continue
            if isinstance(found.event, Ended):
                ticket.end = found.event
            else:
                if isinstance(found.event, Started):
                    ticket.end = None  # a requeued job
                yield found

    def _look_for_ends(self) -> Iterator[TrialEvent]:
        gone = self.gone(list(self.active.values())) if self.active else {}
        for folder, ticket in list(self.active.items()):
            if folder in gone:
                yield from self._read(ticket)
            is_final = ticket.end is not None and ticket.end.state != "interrupted"
            if folder in gone or is_final:
                del self.active[folder]
                for name in (EVENTS, CONTROL):
                    (self.root / name.format(ticket.key)).unlink(missing_ok=True)
                self.forget(ticket)
                yield from self._end(ticket, gone.get(folder, ""))

    def forget(self, ticket: Ticket) -> None:
        """Remove what is stored about a trial that has ended."""

    def _end(self, ticket: Ticket, reason: str) -> Iterator[TrialEvent]:
        """Yield the end of a trial; hand it in again if it was lost or stopped by others."""
        folder, job = ticket.job.folder, ticket.job
        end = ticket.end or result_of(RunDir(self.root / folder))
        if end and end.state != "interrupted":
            yield TrialEvent(folder, end)
        elif self.stopping:
            yield TrialEvent(folder, end or Ended(state="interrupted", reason=reason))
        elif end:
            self.waiting.append(job)
            text = "it was stopped from outside; it continues from its checkpoint"
            yield TrialEvent(folder, Message(text=text))
        elif job.attempt < MAX_ATTEMPTS:
            self.waiting.append(replace(job, attempt=job.attempt + 1))
            text = f"{reason}; it continues from its checkpoint"
            yield TrialEvent(folder, Message(text=text))
        else:
            yield TrialEvent(folder, Ended(state="failed", reason=reason))


def result_of(run: RunDir) -> Ended | None:
    """Return the end of a trial that has a result in its folder; None without a result."""
    state = run.status()["state"]
    if state not in RESULT_STATES:
        return None
    result = run.read("result.json")
    name = headline_key(result, TASKS[run.spec().task.name].headline.name)
    if state == "finished" and name not in result:
        return None
    return Ended(state=state, reason=run.status()["reason"], score=result.get(name))
