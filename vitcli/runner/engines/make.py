"""The table of engines, and the one door to them."""

from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path

from vitcli.runner.engines.engine import Cluster, Engine, Job, Setup
from vitcli.runner.engines.here import HereEngine
from vitcli.runner.engines.local import LocalEngine
from vitcli.runner.engines.ray import RayEngine, require_ray
from vitcli.runner.engines.slurm import SlurmEngine, require_slurm
from vitcli.runner.errors import ConfigError


def make_local(root: Path, jobs: Sequence[Job], setup: Setup) -> Engine:
    """Return worker processes on this machine, or this process."""
    if setup.in_process:
        return HereEngine(root, jobs, setup)
    return LocalEngine(
        root,
        jobs,
        count=setup.count or 1,
        threads=setup.threads,
        pin=setup.pin,
        request=setup.request,
        driver=setup.driver,
    )


Make = Callable[[Path, Sequence[Job], Setup], Engine]
ENGINES: dict[str, Make] = {"local": make_local, "ray": RayEngine, "slurm": SlurmEngine}
"""Name -> engine, as ``--engine`` takes it."""
REQUIRED: dict[str, Callable[[], None]] = {"ray": require_ray, "slurm": require_slurm}
"""Engine -> check that its packages and programs are installed."""
TAKEN: dict[str, tuple[str, ...]] = {
    "local": (),
    "ray": ("address", "cpus", "gpus", "memory"),
    "slurm": ("cpus", "gpus", "memory", "partition", "minutes", "sbatch"),
}
"""Engine -> the fields of ``Cluster`` that it takes."""


def make_engine(name: str, root: Path, jobs: Sequence[Job], setup: Setup) -> Engine:
    """Return the engine that trains the jobs of a folder."""
    check_engine(setup.cluster)
    return ENGINES[name](root, jobs, setup)


def check_engine(cluster: Cluster) -> None:
    """Check, before any training, that an engine exists, can start and takes the options."""
    name = cluster.engine
    if name not in ENGINES:
        raise ConfigError(f"--engine {name}: choose one of {', '.join(ENGINES)}")
    for field in fields(Cluster):
        given = getattr(cluster, field.name)
        if field.name == "engine" or given in (None, {}) or field.name in TAKEN[name]:
            continue
        takers = [f"--engine {each}" for each, taken in TAKEN.items() if field.name in taken]
        raise ConfigError(f"{OPTIONS[field.name]} is an option of {' and '.join(takers)}")
    if name == "slurm" and cluster.gpus is not None and cluster.gpus % 1:
        raise ConfigError(f"--gpus {cluster.gpus:g}: Slurm gives whole GPUs; choose 1")
    if name in REQUIRED:
        REQUIRED[name]()


OPTIONS = {
    "address": "--address",
    "cpus": "--cpus",
    "gpus": "--gpus",
    "memory": "--memory",
    "partition": "--partition",
    "minutes": "--time-limit",
    "sbatch": "--sbatch",
}
"""Field of ``Cluster`` -> the option that sets it."""
