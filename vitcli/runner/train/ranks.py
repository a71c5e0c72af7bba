"""The processes (ranks) of one training that torchrun started: orders, agreement and losses.

Rank 0 prepares, decides and writes every file. It sends each training as an order to the other
ranks, which train along and write nothing. Orders and notes travel through torchrun's store, which
outlives every rank.

A rank that leaves on purpose puts a note into the store. So the others know a failure from a death:
the dead leave no note. torchrun always exits with 1; status.json says what happened. The lowest
rank that is alive writes it.
"""

import contextlib
import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from pydantic import ValidationError

from vitcli.core import ranks
from vitcli.core.ranks import LostRankError, exchange
from vitcli.core.spec import ExperimentSpec
from vitcli.core.train.training import Training
from vitcli.runner.errors import ConfigError, ResourceError, UserError
from vitcli.runner.experiment import own_code
from vitcli.runner.machine.launch import Launch
from vitcli.runner.run.folder import RunDir
from vitcli.runner.run.record import read_record
from vitcli.runner.text import ignore_message
from vitcli.runner.train.signals import StopFlag

TIMEOUT_VARIABLE = "VITCLI_RANK_TIMEOUT"
TIMEOUT = 1800.0
"""Seconds after which a rank that does not answer is given up. Rank 0 evaluates meanwhile."""
LOOPBACK = Path("/sys/class/net/lo")
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


class Processes:
    """The only process of a training: it has nobody to talk to."""

    size = 1

    def device_name(self, name: str) -> str:
        return name

    def command(self, text: str) -> str:
        """Return a ``vitcli`` command as it must be typed to run on as many ranks."""
        return text

    def send(self, spec: ExperimentSpec, run: RunDir, resume_command: str, facts: Facts) -> None:
        """Send a training to the other ranks, and wait until they are ready."""

    def compare(self, facts: Facts) -> None:
        """Refuse ranks that would compute something else."""

    def share(self, state: Training) -> None:
        """Copy the state of a training from rank 0 to the other ranks."""

    def part(self) -> None:
        """Disconnect from the other ranks after the last step of a training."""

    @contextlib.contextmanager
    def watch(self, run: RunDir, resume_command: str) -> Iterator[None]:
        yield


ONE_PROCESS = Processes()


class TorchrunProcesses(Processes):
    """The ranks of one torchrun, and what they tell each other through its store."""

    def __init__(
        self, launch: Launch, store: dist.Store, on_message: Callable[[str], None] = ignore_message
    ) -> None:
        self.launch, self.size, self.store = launch, launch.size, store
        self.on_message = on_message
        self.stop: StopFlag | None = None
        self._set(f"who/{launch.rank}", {"host": socket.gethostname(), "pid": os.getpid()})
        self.timeout = timedelta(seconds=read_timeout())
        self._number = 0
        """Number of exchanges through the store so far."""

    def device_name(self, name: str) -> str:
        local = self.launch.local_rank
        if name not in ("auto", "cpu", "cuda"):
            raise ConfigError(f"--device {name}: on several ranks write auto, cpu or cuda")
        if name == "cpu" or not torch.cuda.is_available():
            return name
        if local >= torch.cuda.device_count():
            raise ResourceError(
                f"rank {self.launch.rank} needs a GPU of its own, but this machine has"
                f" {torch.cuda.device_count()}; lower --nproc-per-node, or add --device cpu"
            )
        return f"cuda:{local}"

    def command(self, text: str) -> str:
        return f"{self.launch.command} {text}"

    # Notes

    def _set(self, key: str, value: Any) -> None:
        self.store.set(key, json.dumps(value))

    def _get(self, key: str) -> Any:
        return json.loads(self.store.get(key)) if self.store.check([key]) else None

    def leave(self, reason: str) -> None:
        self._set(f"left/{self.launch.rank}", {"reason": reason})

    def end(self, exit_code: int) -> None:
        self._set("end", {"exit_code": exit_code})

    def fails_too(self) -> bool:
        """Return whether rank 0 has the same problem as this rank, and so reports it."""
        until = time.monotonic() + NOTE_SECONDS
        while time.monotonic() < until and not self._get("end"):
            time.sleep(POLL_SECONDS)
        return bool(self._get("end"))

    def _wait(self, key: str) -> Any:
        signalled = None
        while (value := self._get(key)) is None:
            if end := self._get("end"):
                raise EndedError(end["exit_code"])
            for rank in range(self.size):
                if rank != self.launch.rank and (note := self._get(f"left/{rank}")):
                    raise LostRankError(note["reason"])
            if self.stop and self.stop.number:
                signalled = signalled or time.monotonic()
                waited = time.monotonic() - signalled
                if not self._is_alive(0) or (waited > PATIENCE and not self._is_here(0)):
                    raise LostRankError("rank 0 has ended")
            time.sleep(POLL_SECONDS)
        return value

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
            notes = {rank: self._get(f"left/{rank}") for rank in range(self.size)}
            missing = [rank for rank, note in notes.items() if not note]
            if time.monotonic() > until or not any(map(self._is_alive, missing)):
                return {rank: note["reason"] for rank, note in notes.items() if note}
            time.sleep(POLL_SECONDS)

    def linger(self) -> None:
        """Wait until rank 0 has written its last line. torchrun ends all ranks after the first."""
        until = time.monotonic() + PATIENCE
        while self._is_alive(0) and time.monotonic() < until:
            time.sleep(POLL_SECONDS)

    # Orders

    def send(self, spec: ExperimentSpec, run: RunDir, resume_command: str, facts: Facts) -> None:
        refuse_parts(spec, self.size)
        self._number += 1
        order: Facts = {"spec": spec.model_dump_json(), "run": str(run.path)}
        order |= {"resume_command": resume_command, "code": own_code.texts(spec)} | facts
        self._set(f"order/{self._number}", order)
        self.on_message(describe_parts(spec, self.size))
        self._assemble()

    def receive(self) -> Facts:
        self._number += 1
        return dict(self._wait(f"order/{self._number}"))

    def join(self, order: Facts, data_hash: str) -> None:
        """Tell rank 0 that this rank has the data of an order."""
        if order["data_hash"] != data_hash:
            raise ConfigError(f"rank {self.launch.rank} has other images than rank 0")
        self._assemble()

    def _assemble(self) -> None:
        """Wait until all ranks are here, and connect them."""
        self._set(f"ready/{self._number}/{self.launch.rank}", True)
        for rank in range(self.size):
            self._wait(f"ready/{self._number}/{rank}")
        if self.launch.local_size == self.size and LOOPBACK.exists():
            os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK.name)  # no port on a network
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        store = dist.PrefixStore(f"group/{self._number}", self.store)
        rank, size = self.launch.rank, self.size
        with exchange():
            dist.init_process_group(
                backend, store=store, rank=rank, world_size=size, timeout=self.timeout
            )
        ranks.join()

    def compare(self, facts: Facts) -> None:
        self._set(f"facts/{self._number}/{self.launch.rank}", facts)
        for rank in range(self.size):
            other = self._wait(f"facts/{self._number}/{rank}")
            for name, value in facts.items():
                if other[name] != value:
                    raise ConfigError(
                        f"rank {rank} has {name} {other[name]}, rank {self.launch.rank} has"
                        f" {value}; all ranks must compute in the same way"
                    )

    def share(self, state: Training) -> None:
        key, tensors = f"state/{self._number}", {}
        if self.launch.rank == 0:
            tensors = {name: tensor.contiguous() for name, tensor in state.tensors().items()}
            shapes = {k: (str(t.dtype), [*t.shape], t.device.type) for k, t in tensors.items()}
            scaler = state.scaler.state_dict() if state.scaler else None
            self._set(key, {"step": state.step, "scaler": scaler, "tensors": shapes})
        note = self._wait(key)
        for name, (dtype, shape, kind) in note["tensors"].items():
            if self.launch.rank:
                place = state.device if kind == state.device.type else kind
                tensors[name] = torch.empty(
                    shape, dtype=getattr(torch, dtype.removeprefix("torch.")), device=place
                )
            with exchange():
                dist.broadcast(tensors[name], 0)
        if self.launch.rank:
            state.load(note["step"], lambda part: part_of(tensors, part), note["scaler"])

    # Losses

    @contextlib.contextmanager
    def watch(self, run: RunDir, resume_command: str) -> Iterator[None]:
        try:
            try:
                yield
            except (LostRankError, dist.DistError) as error:
                self.report_loss(run, resume_command, error)
        except dist.DistError as error:
            reason = f"torchrun's store was lost: {str(error).partition(chr(10))[0]}"
            raise ResourceError(f"{run.path}: {reason}. Continue: {resume_command}") from error

    def report_loss(self, run: RunDir, resume_command: str, error: Exception) -> NoReturn:
        """Write into status.json which rank was lost and why, if this is the lowest rank alive."""
        if not self._get(f"left/{self.launch.rank}"):
            self.leave("")
        notes = self._wait_for_notes()
        end = self._get("end")
        if end and self.launch.rank:
            raise EndedError(end["exit_code"])
        if self.launch.rank > min(notes):
            raise EndedError(ResourceError.exit_code)
        failed = [f"rank {rank} failed: {reason}" for rank, reason in notes.items() if reason]
        silent = [rank for rank in range(self.size) if rank not in notes]
        lost = [self._describe_silence(rank) for rank in silent]
        reason = ", ".join(failed or lost) or str(error)
        if run.exists and read_record(run).status == "running":
            run.set_status("failed", run.last_step(), reason)
        raise ResourceError(f"{run.path}: {reason}. Continue: {resume_command}") from error

    def _describe_silence(self, rank: int) -> str:
        place = "process {pid} on {host}".format(**self._who(rank))
        if self._is_here(rank) and self._is_alive(rank):
            seconds = self.timeout.total_seconds()
            return f"rank {rank} did not answer for {seconds:g} s ({place})"
        return f"rank {rank} was killed or its machine was lost ({place})"

    def part(self) -> None:
        if dist.is_initialized():
            ranks.leave()
            dist.destroy_process_group()


def connect(launch: Launch) -> dist.Store:
    endless = timedelta(days=7)  # rank 0 may download a data set first
    meeting = dist.rendezvous("env://", rank=launch.rank, world_size=launch.size, timeout=endless)
    store: dist.Store = next(meeting)[0]
    return store


@contextlib.contextmanager
def leading(launch: Launch | None, on_message: Callable[[str], None]) -> Iterator[Processes]:
    """Yield the processes of a training, of which this is rank 0 or the only one."""
    if launch is None:
        yield ONE_PROCESS
        return
    processes, code = TorchrunProcesses(launch, connect(launch), on_message), 1
    try:
        yield processes
        code = 0
    except UserError as error:
        code = error.exit_code
        raise
    finally:
        with contextlib.suppress(dist.DistError):  # the store is lost, too
            processes.end(code)


def read_timeout() -> float:
    """Return the seconds after which a rank that does not answer is given up."""
    text = os.environ.get(TIMEOUT_VARIABLE) or str(TIMEOUT)
    with contextlib.suppress(ValueError):
        if 0 < (seconds := float(text)) < float("inf"):
            return seconds
    raise ConfigError(f"{TIMEOUT_VARIABLE} takes a number of seconds above 0, not {text!r}")


def refuse_parts(spec: ExperimentSpec, size: int) -> None:
    """Refuse a batch whose rows cannot be divided among the ranks."""
    train = spec.train
    parts = size * train.accumulate
    if train.batch_size % parts:
        fewer = train.batch_size // parts * parts or parts
        among = f"{size} ranks" + (f" x {train.accumulate} parts" if train.accumulate > 1 else "")
        raise ConfigError(
            f"train.batch_size: {train.batch_size} images cannot be divided among {among};"
            f" type -s train.batch_size={fewer}, or start another number of ranks"
        )
    try:
        spec.replace(train=train.replace(batch_size=train.batch_size // size))
    except ValidationError as error:
        problem = str(error.errors()[0]["msg"]).removeprefix("Value error, ")
        raise ConfigError(f"{problem}; that is the share of each of {size} ranks") from error


def describe_parts(spec: ExperimentSpec, size: int) -> str:
    count = spec.train.batch_size
    return f"{size} ranks, each with {count // size} of the {count} images of a step"


def part_of(tensors: Mapping[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    start = f"{prefix}."
    return {k.removeprefix(start): t for k, t in tensors.items() if k.startswith(start)}
