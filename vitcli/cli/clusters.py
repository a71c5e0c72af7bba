"""`--engine`: several drivers train one study on a cluster.

A driver is the same command without ``--engine``. The drivers share the study's folder, where the
lock of each trial lets one of them train it. The state of a trial comes from its folder, never from
the scheduler.
"""

import os
import platform
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from vitcli.cli.console import emit_exactly, say

ATTEMPTS = 3
"""Number of times that Ray begins a driver whose process or machine dies."""
POLL_SECONDS = 1.0
SCRIPT = """#!/bin/sh
#SBATCH --job-name=vitcli-{name}
#SBATCH --array=1-{count}
#SBATCH --cpus-per-task={cores}
#SBATCH --output={logs}/slurm-%A_%a.txt
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR1@90
cd {folder} || exit
{command} &
# 90 seconds before the time limit: save a checkpoint, and continue in another job.
trap 'kill -TERM $!; wait $!
exec scontrol requeue "${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID"' USR1
wait $!
"""


class Engine(StrEnum):
    """Where a study is trained."""

    local = "local"
    ray = "ray"
    slurm = "slurm"


Place = Annotated[
    Engine,
    typer.Option(
        "--engine",
        help="Where to train: local (this machine); ray (-j drivers on a Ray cluster); slurm (print"
        " a script for sbatch with -j drivers).",
        hidden=True,
    ),
]
Gpus = Annotated[
    float | None,
    typer.Option(
        min=0,
        help="Ray: GPUs of each driver; with 0.25, four share a GPU.",
        show_default="1 if there are GPUs",
        hidden=True,
    ),
]


def check_engine(engine: Engine, jobs: int | None, gpus: float | None) -> None:
    """Refuse, before any training, what an engine cannot do."""
    from vitcli.runner.errors import ConfigError

    if gpus is not None and engine is not Engine.ray:
        raise ConfigError("--gpus is an option of --engine ray; for Slurm, type it after sbatch")
    if engine is not Engine.local and not jobs:
        raise ConfigError(f"--engine {engine}: say with -j how many trials run at once")
    if engine is Engine.ray and find_spec("ray") is None:
        raise ConfigError("--engine ray needs the package ray; type: pip install ray")


@dataclass(frozen=True, kw_only=True)
class Drivers:
    """The drivers of one study, each of which trains one trial at a time."""

    root: Path
    """Folder of the study."""
    count: int
    cores: int
    """CPU cores of each driver."""
    gpus: float | None = None
    """GPUs of each driver; None for one if there are GPUs."""

    @property
    def words(self) -> list[str]:
        """Return the command line of a driver, after ``vitcli``."""
        return [*shared_words(sys.argv[1:]), "-j", "1", "-o", str(self.root.resolve())]

    def make_logs(self) -> Path:
        """Return the folder of the logs, which every machine must see."""
        from vitcli.runner.engines.drivers import LOGS
        from vitcli.runner.files import make_folder, make_output_folder

        make_output_folder(self.root)
        make_folder(logs := self.root.resolve() / LOGS)
        return logs


def shared_words(words: Sequence[str]) -> list[str]:
    """Return a command line without the options that a driver has of its own."""
    left = list(words)
    shared = []
    while left:
        word = left.pop(0)
        if word in ("--engine", "--gpus", "-j", "--jobs", "-o", "--output"):
            left = left[1:]
        elif not re.match(r"--(engine|gpus|jobs|output)=|-[jo].", word):
            shared.append(word)
    return shared


def print_script(drivers: Drivers) -> None:
    """Print a script for sbatch, an array of jobs with a driver each."""
    from vitcli.runner.child import python_command

    text = SCRIPT.format(
        name=drivers.root.resolve().name,
        count=drivers.count,
        cores=drivers.cores,
        logs=shlex.quote(str(drivers.make_logs())),
        folder=shlex.quote(str(Path.cwd())),
        command=shlex.join(python_command("-m", "vitcli", *drivers.words)),
    )
    emit_exactly(text, nl=False)
    say("submit  pipe this script into sbatch, with its options: | sbatch --time 2h --gpus 1")
    say(f"next    vitcli runs watch {shlex.quote(str(drivers.root))}")


def drive(words: Sequence[str], folder: str, log: str) -> str:
    """Be a driver, in a process that Ray has made for it; return why it failed."""
    from vitcli.cli.main import main
    from vitcli.runner.errors import PartlyError

    try:
        file = os.open(log, os.O_WRONLY | os.O_APPEND)  # the first process made it
        os.chdir(folder)
    except FileNotFoundError as error:
        return (
            f"{platform.node()} does not see {error.filename}; choose folders on a file system that"
            " all machines share: -o FOLDER"
        )
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.argv = ["vitcli", *words]
    try:
        main()
    except SystemExit as end:
        if end.code in (0, None, PartlyError.exit_code):
            return ""
        return f"a driver ended with exit code {end.code}; see {log}"
    return ""


def train_on_ray(drivers: Drivers, device: str) -> int | None:
    """Start drivers on a Ray cluster and wait for them; return the signal that stopped them.

    The cluster is that of RAY_ADDRESS or of this machine; without one, Ray starts here.
    """
    import ray

    from vitcli.runner.errors import ResourceError
    from vitcli.runner.text import one_line, quantity
    from vitcli.runner.train.signals import StopFlag

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no network that nobody asked for
    try:
        ray.init(logging_level="ERROR", log_to_driver=False)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise ResourceError(
            f"no Ray cluster answers ({one_line(str(error), 120)}); start one: ray start --head"
        ) from error
    try:
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        gpus = drivers.gpus
        if gpus is None:
            gpus = float(device != "cpu" and any(node.get("GPU") for node in nodes))
        count = min(drivers.count, room(nodes, drivers.cores, gpus))
        say(f"Ray: {quantity(len(nodes), 'machine')}, {quantity(count, 'driver')}")
        task = ray.remote(
            num_cpus=drivers.cores, num_gpus=gpus, max_retries=ATTEMPTS - 1, max_calls=1
        )(drive)
        logs = [drivers.make_logs() / f"ray{number}.txt" for number in range(count)]
        for log in logs:
            log.write_bytes(b"")
        with StopFlag() as stop:
            tasks = [task.remote(drivers.words, os.getcwd(), str(log)) for log in logs]
            wait_for(tasks, stop, progress_of(drivers.root))
        return stop.number
    finally:
        ray.shutdown()


def room(nodes: Sequence[Mapping[str, float]], cores: int, gpus: float) -> int:
    """Return the number of drivers that fit on the machines of a cluster, at least 1."""
    from vitcli.runner.errors import ResourceError

    by_cores = [node.get("CPU", 0) // cores for node in nodes]
    by_gpus = [node.get("GPU", 0) // gpus if gpus else float("inf") for node in nodes]
    count = int(sum(map(min, by_cores, by_gpus)))
    if not count:
        raise ResourceError(
            f"no machine of the Ray cluster has {cores} CPU cores and {gpus:g} GPUs for a driver;"
            " see: ray status"
        )
    return count


def wait_for(tasks: list[Any], stop: Any, show: Callable[[], None]) -> None:
    """Wait until all drivers have ended; print why some failed. A signal stops them."""
    import ray

    from vitcli.runner.text import one_line

    is_stopping = False
    while tasks:
        ended, tasks = ray.wait(tasks, num_returns=len(tasks), timeout=POLL_SECONDS)
        show()
        for task in ended:
            try:
                reason = ray.get(task)
            except ray.exceptions.TaskCancelledError:
                continue
            except ray.exceptions.RayError as error:
                reason = one_line(str(error).strip().splitlines()[-1], 300)
            if reason:
                say(reason)
        if stop.number and not is_stopping:
            is_stopping = True
            say("stopping: every running trial saves a checkpoint")
            for task in tasks:
                ray.cancel(task)  # the driver sees SIGINT


def progress_of(root: Path) -> Callable[[], None]:
    """Return a function that prints the states of the trials whenever one has changed."""
    from vitcli.cli.watch_screen import summary
    from vitcli.runner.overview.progress import Watcher

    watcher = Watcher(root)
    before: list[str] = []

    def show() -> None:
        nonlocal before
        progress = watcher.read()
        states = [trial.state for trial in progress.trials]
        if progress.is_study and states != before:
            before = states
            say(summary(progress))

    return show
