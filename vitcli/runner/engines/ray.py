"""Trials on a Ray cluster: each is a task with cores and GPUs of its own. Needs the package ray."""

import contextlib
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TextIO

from vitcli.runner.engines.engine import Job, Setup
from vitcli.runner.engines.node import EVENTS, NodeTrial, Place
from vitcli.runner.engines.remote import RemoteEngine, Ticket
from vitcli.runner.errors import ConfigError, ResourceError
from vitcli.runner.text import one_line, quantity
from vitcli.runner.train.events import Message, TrialEvent
from vitcli.runner.train.signals import STOPPING

LOG = "logs/ray.txt"
"""File below the study's folder with what Ray prints."""
PROBE_SECONDS = 120.0
"""Time that the machines of a cluster may take to say whether they see the folder."""


def require_ray() -> None:
    """Check that Ray is installed."""
    if find_spec("ray") is None:
        raise ConfigError("--engine ray needs the package ray; type: pip install ray")


def train_on_node(trial: NodeTrial) -> str:
    """Train a trial on this machine; return why it cannot."""
    if problem := trial.place.find_problem():
        return problem
    trial.start().wait()
    return ""


def find_problem(place: Place) -> str:
    """Return why this machine cannot train trials; '' if it can."""
    return place.find_problem()


class OwnLines(io.TextIOBase):
    """A stream that takes lines of one thread; lines of other threads go into a log.

    Ray's threads print about lost machines to stdout, where only results belong.
    """

    def __init__(self, stream: TextIO, log: TextIO) -> None:
        self._stream, self._log, self._thread = stream, log, threading.current_thread()

    def write(self, text: str) -> int:
        is_own = threading.current_thread() is self._thread
        return (self._stream if is_own else self._log).write(text)

    def flush(self) -> None:
        self._stream.flush()


class RayEngine(RemoteEngine):
    """Hands each trial to Ray, which finds a machine with free cores and GPUs."""

    def __init__(self, root: Path, jobs: Sequence[Job], setup: Setup) -> None:
        super().__init__(root, jobs, setup)
        self._refs: dict[str, Any] = {}
        self._streams = contextlib.ExitStack()

    def open(self) -> Iterator[TrialEvent]:
        """Connect to the cluster, or start Ray on this machine; refuse unfit machines."""
        import ray

        log = self._streams.enter_context((self.root / LOG).open("a"))
        own = OwnLines(sys.stdout, log)
        self._streams.enter_context(contextlib.redirect_stdout(own))
        self._connect()
        nodes = [node for node in ray.nodes() if node["Alive"]]
        self.gpus = self._gpus_of_trial(nodes)
        self.cpus = self.cluster.cpus or self.setup.threads
        self._refuse_unfit(nodes)
        yield TrialEvent("", Message(text=describe(nodes, self.cpus, self.gpus)))

    def _connect(self) -> None:
        import ray

        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no network that nobody asked for
        is_main = threading.current_thread() is threading.main_thread()
        handlers = {each: signal.getsignal(each) for each in STOPPING} if is_main else {}
        options: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}
        try:
            ray.init(address=self.cluster.address, ignore_reinit_error=True, **options)
        except (ConnectionError, ValueError, RuntimeError) as error:
            address = self.cluster.address or os.environ.get("RAY_ADDRESS", "local")
            raise ResourceError(
                f"--address {address}: no Ray cluster answers ({one_line(str(error), 120)});"
                " start one: ray start --head"
            ) from error
        for number, handler in handlers.items():  # Ray installs its own
            signal.signal(number, handler)

    def _gpus_of_trial(self, nodes: Sequence[Any]) -> float:
        if self.cluster.gpus is not None:
            return self.cluster.gpus
        has_gpu = any(node["Resources"].get("GPU") for node in nodes)
        return 1.0 if has_gpu and self.setup.request.get("device") != "cpu" else 0.0

    def _refuse_unfit(self, nodes: Sequence[Any]) -> None:
        """Refuse trials that fit on no machine, and machines that do not share the folder."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        fitting = [node for node in nodes if self._fits(node["Resources"])]
        if not fitting:
            most = max((node["Resources"] for node in nodes), key=lambda r: r.get("CPU", 0))
            raise ResourceError(
                f"no machine of the Ray cluster has {quantity(self.cpus, 'core')} and {self.gpus:g}"
                f" GPUs for a trial; the largest has {most.get('CPU', 0):g} cores and"
                f" {most.get('GPU', 0):g} GPUs; choose --cpus and --gpus"
            )
        probe = ray.remote(num_cpus=0, max_retries=0)(find_problem)
        places = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in fitting]
        refs = [probe.options(scheduling_strategy=each).remote(self.place) for each in places]
        try:
            problems = ray.get(refs, timeout=PROBE_SECONDS)
        except ray.exceptions.RayError as error:
            raise ResourceError(
                f"a machine of the Ray cluster cannot run vitcli: {one_line(str(error), 300)}"
            ) from error
        if found := next(filter(None, problems), None):
            raise ResourceError(found)

    def _fits(self, resources: Any) -> bool:
        return bool(
            resources.get("CPU", 0) >= self.cpus
            and resources.get("GPU", 0) >= self.gpus
            and resources.get("memory", 0) >= (self.cluster.memory or 0) * 1e9
        )

    def submit(self, tickets: Sequence[Ticket]) -> Iterator[TrialEvent]:
        """Make a task of each trial. Ray queues the tasks until there is room."""
        import ray

        task = ray.remote(num_cpus=self.cpus, num_gpus=self.gpus, max_retries=0, max_calls=1)(
            train_on_node
        )
        memory = {"memory": self.cluster.memory * 1e9} if self.cluster.memory else {}
        for ticket in tickets:
            named = task.options(name=ticket.job.folder, **memory)
            self._refs[ticket.job.folder] = named.remote(self.trial(ticket))
        yield from ()

    def gone(self, tickets: Sequence[Ticket]) -> dict[str, str]:
        """Return the trials whose task has ended, and why."""
        import ray

        folders = {self._refs[ticket.job.folder]: ticket.job.folder for ticket in tickets}
        ready, _ = ray.wait(list(folders), num_returns=len(folders), timeout=0)
        return {folders[ref]: self._reason(ref) for ref in ready}

    def _reason(self, ref: Any) -> str:
        import ray

        try:
            return str(ray.get(ref)) or "its worker ended without a result"
        except ray.exceptions.TaskCancelledError:
            return "its task was cancelled"
        except ray.exceptions.RayError as error:
            return f"its machine or its Ray worker is gone ({type(error).__name__})"

    def cancel(self, tickets: Sequence[Ticket]) -> None:
        """Cancel waiting tasks. A task that trains is not cancelled: Ray would kill its worker."""
        import ray

        for ticket in tickets:
            if not (self.root / EVENTS.format(ticket.key)).exists():
                ray.cancel(self._refs[ticket.job.folder])

    def close(self) -> None:
        """Disconnect; a Ray that this process started ends."""
        import ray

        ray.shutdown()
        self._streams.close()


def describe(nodes: Sequence[Any], cpus: int, gpus: float) -> str:
    """Return the size of a cluster, and what each trial takes of it."""
    total = {name: sum(node["Resources"].get(name, 0) for node in nodes) for name in ("CPU", "GPU")}
    each = quantity(cpus, "core") + (f", {gpus:g} GPU" if gpus else "")
    return (
        f"Ray: {quantity(len(nodes), 'machine')}, {total['CPU']:g} cores, {total['GPU']:g} GPUs;"
        f" each trial takes {each}"
    )
