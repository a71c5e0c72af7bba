"""``--engine ray``: drivers on a Ray cluster train one study, search or comparison."""

import logging
import os
import platform
import runpy
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vitcli.cli.console import say
from vitcli.cli.engines import driver_words, make_logs
from vitcli.runner.engines.local import MAX_ATTEMPTS
from vitcli.runner.errors import CheckError, PartlyError, ResourceError, StoppedError
from vitcli.runner.overview.progress import Watcher, summary
from vitcli.runner.study.plan import Options
from vitcli.runner.text import one_line, quantity
from vitcli.runner.train.signals import StopFlag

POLL_SECONDS = 1.0


def drive(words: Sequence[str], folder: str, log: str) -> str:
    """Be a driver, in a process that Ray has made for it; return why it failed."""
    try:
        file = os.open(log, os.O_WRONLY | os.O_APPEND)  # the first process made it
        os.chdir(folder)
    except FileNotFoundError as error:
        return f"{platform.node()} does not see {error.filename}; choose a shared folder with -o"
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.argv = ["vitcli", *words]
    try:
        runpy.run_module("vitcli", run_name="__main__")
    except SystemExit as end:
        if end.code not in (0, None, PartlyError.exit_code, CheckError.exit_code):
            return f"a driver ended with exit code {end.code}; see {log}"
    return ""


def train_on_ray(root: Path, threads: int, options: Options, gpus: float | None) -> bool:
    """Train with drivers on the cluster of RAY_ADDRESS or of this machine, or start one."""
    import ray

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no network that nobody asked for
    try:
        ray.init(logging_level=logging.ERROR, log_to_driver=False)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise ResourceError(
            f"no Ray cluster answers ({one_line(str(error), 120)}); start one: ray start --head"
        ) from error
    try:
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if gpus is None:
            gpus = float(options.device != "cpu" and any(node.get("GPU") for node in nodes))
        count = min(options.jobs or 1, room(nodes, threads, gpus))
        say(f"Ray: {quantity(len(nodes), 'machine')}, {quantity(count, 'driver')}")
        logs = [make_logs(root) / f"ray{number}.txt" for number in range(count)]
        for log in logs:
            log.write_bytes(b"")
        as_task = ray.remote(
            num_cpus=threads, num_gpus=gpus, max_retries=MAX_ATTEMPTS - 1, max_calls=1
        )
        task = as_task(drive)
        words = driver_words(root)
        with StopFlag() as stop:
            wait_for([task.remote(words, os.getcwd(), str(log)) for log in logs], stop, root)
    finally:
        ray.shutdown()
    if stop.number:
        done = summary(Watcher(root).read())
        raise StoppedError(f"stopped; {done}. Continue: {options.command}", stop.number)
    return True


def room(nodes: Sequence[Mapping[str, float]], cores: int, gpus: float) -> int:
    by_cores = [node.get("CPU", 0) // cores for node in nodes]
    by_gpus = [node.get("GPU", 0) // gpus if gpus else float("inf") for node in nodes]
    count = int(sum(map(min, by_cores, by_gpus)))
    if not count:
        raise ResourceError(
            f"no machine of the Ray cluster has {cores} CPU cores and {gpus:g} GPUs for a driver;"
            " see: ray status"
        )
    return count


def wait_for(tasks: list[Any], stop: StopFlag, root: Path) -> None:
    """Wait for drivers; print the states of the trials when one changes, and why drivers failed."""
    import ray

    watcher, is_stopping = Watcher(root), False
    states: list[str] = []
    while tasks:
        ended, tasks = ray.wait(tasks, num_returns=len(tasks), timeout=POLL_SECONDS)
        progress, before = watcher.read(), states
        states = [trial.state for trial in progress.trials]
        if progress.is_study and states != before:
            say(f"{progress.name}: {summary(progress)}")
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
