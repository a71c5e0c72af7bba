"""Notes that the processes (ranks) of a training leave in torchrun's store, and who is alive.

The store outlives every rank.
"""

import json
import os
import socket
import time
from typing import Any

import torch.distributed as dist

from vitcli.core.ranks import LostRankError
from vitcli.runner.machine.launch import Launch
from vitcli.runner.train.signals import StopFlag

NOTE_SECONDS = 3.0
"""Time in which the ranks that are alive leave a note."""
PATIENCE = 20.0
"""Time that a rank waits after a signal for rank 0 on another machine. torchrun kills in 30 s."""
POLL_SECONDS = 0.05
Facts = dict[str, Any]


class EndedError(Exception):
    """Rank 0 has ended, so this rank ends with the same exit code."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code


class RankNotes:
    """The notes of a rank and of the others.

    Args:
        launch: Which of the ranks this is.
        store: A store that all ranks share.
    """

    def __init__(self, launch: Launch, store: dist.Store) -> None:
        self.launch, self.size, self.store = launch, launch.size, store
        self.stop: StopFlag | None = None
        self._set(f"who/{launch.rank}", {"host": socket.gethostname(), "pid": os.getpid()})

    def _set(self, key: str, value: Any) -> None:
        self.store.set(key, json.dumps(value))

    def _get(self, key: str) -> Any:
        """Return a note, or None if nobody has written it."""
        return json.loads(self.store.get(key)) if self.store.check([key]) else None

    def leave(self, reason: str) -> None:
        self._set(f"left/{self.launch.rank}", {"reason": reason})

    def end(self, exit_code: int) -> None:
        """Tell the other ranks that rank 0 ends."""
        self._set("end", {"exit_code": exit_code})

    def fails_too(self) -> bool:
        """Return whether rank 0 has the same problem as this rank, and so reports it."""
        until = time.monotonic() + NOTE_SECONDS
        while time.monotonic() < until and not self._get("end"):
            time.sleep(POLL_SECONDS)
        return bool(self._get("end"))

    def _wait(self, key: str) -> Any:
        """Return a note as soon as it is there."""
        signalled = None
        while (value := self._get(key)) is None:
            if end := self._get("end"):
                raise EndedError(end["exit_code"])
            self._refuse_left()
            if self.stop and self.stop.number:
                signalled = signalled or time.monotonic()
                waited = time.monotonic() - signalled
                if not self._is_alive(0) or (waited > PATIENCE and not self._is_here(0)):
                    raise LostRankError("rank 0 has ended")
            time.sleep(POLL_SECONDS)
        return value

    def _refuse_left(self) -> None:
        for rank in range(self.size):
            if rank != self.launch.rank and (note := self._get(f"left/{rank}")):
                raise LostRankError(note["reason"])

    def _is_alive(self, rank: int) -> bool:
        """Return whether a process is alive; True if it is on another machine."""
        try:
            if self._is_here(rank):
                os.kill(self._who(rank)["pid"], 0)
        except ProcessLookupError:
            return False
        return True

    def _is_here(self, rank: int) -> bool:
        return bool(self._who(rank)["host"] == socket.gethostname())

    def _who(self, rank: int) -> Facts:
        return self._get(f"who/{rank}") or {"host": "an unknown machine", "pid": "unknown"}

    def _wait_for_notes(self) -> dict[int, str]:
        """Return the notes when every rank that is alive has had the time to leave one."""
        until = time.monotonic() + NOTE_SECONDS
        while True:
            notes = self._notes()
            missing = [rank for rank in range(self.size) if rank not in notes]
            if time.monotonic() > until or not any(map(self._is_alive, missing)):
                return notes
            time.sleep(POLL_SECONDS)

    def _notes(self) -> dict[int, str]:
        found = {rank: self._get(f"left/{rank}") for rank in range(self.size)}
        return {rank: note["reason"] for rank, note in found.items() if note}

    def linger(self) -> None:
        """Wait until rank 0 has written its last line. torchrun ends all ranks after the first."""
        until = time.monotonic() + PATIENCE
        while self._is_alive(0) and time.monotonic() < until:
            time.sleep(POLL_SECONDS)
