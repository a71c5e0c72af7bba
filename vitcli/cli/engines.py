"""The options that choose an engine and what each trial gets of it."""

import re
from typing import TYPE_CHECKING, Annotated

import typer

from vitcli.cli import complete

if TYPE_CHECKING:
    from vitcli.runner.engines.engine import Cluster

MINUTES = {"m": 1, "h": 60, "d": 1440}

Engine = Annotated[
    str,
    typer.Option(
        help="Where to train: local (this machine), ray or slurm.",
        autocompletion=complete.engine,
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="Ray: address of a running cluster; auto finds the one of this machine.",
        show_default="RAY_ADDRESS, or a new Ray on this machine",
    ),
]
Cpus = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Ray, Slurm: CPU cores of each trial.",
        show_default="the threads of the study",
    ),
]
Gpus = Annotated[
    float | None,
    typer.Option(
        min=0,
        help="Ray, Slurm: GPUs of each trial. With Ray, 0.25 lets four trials share a GPU.",
        show_default="Ray: 1 if there are GPUs",
    ),
]
Memory = Annotated[
    float | None,
    typer.Option(
        min=0.1,
        metavar="GB",
        help="Ray, Slurm: memory of each trial in GB.",
        show_default="not limited by vitcli",
    ),
]
Partition = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Slurm: partition.", show_default="the cluster's own"),
]
TimeLimit = Annotated[
    str | None,
    typer.Option(
        metavar="2h",
        help="Slurm: time limit of each job (m, h or d). A trial that needs longer continues in"
        " another job.",
        show_default="1h",
    ),
]
Sbatch = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="Slurm: another option of sbatch, such as account=vision; may be repeated.",
    ),
]


def read_cluster(
    engine: str,
    address: str | None,
    cpus: int | None,
    gpus: float | None,
    memory: float | None,
    partition: str | None,
    time_limit: str | None,
    sbatch: list[str] | None,
) -> "Cluster":
    """Return the engine and what each trial gets of it.

    Raises:
        ConfigError: The engine is unknown, cannot start, or does not take an option.
    """
    from vitcli.runner.engines.engine import Cluster
    from vitcli.runner.engines.make import check_engine

    cluster = Cluster(
        engine=engine,
        address=address,
        cpus=cpus,
        gpus=gpus,
        memory=memory,
        partition=partition,
        minutes=parse_minutes(time_limit) if time_limit is not None else None,
        sbatch=dict(parse_sbatch(text) for text in sbatch or ()),
    )
    check_engine(cluster)
    return cluster


def parse_minutes(text: str) -> int:
    """Return a time such as ``30m``, ``2h`` or ``1d`` in minutes."""
    from vitcli.runner.errors import ConfigError

    match = re.fullmatch(r"(\d{1,4})([mhd])", text.strip())
    if not match or not int(match[1]):
        raise ConfigError(f"--time-limit takes a time such as 30m or 2h, got {text!r}")
    return int(match[1]) * MINUTES[match[2]]


def parse_sbatch(text: str) -> tuple[str, str]:
    """Return name and value of an option of sbatch, such as ``account=vision``."""
    from vitcli.runner.errors import ConfigError

    match = re.fullmatch(r"(?:--)?([a-z][a-z-]*)=(\S+)", text.strip())
    if not match:
        raise ConfigError(f"--sbatch takes NAME=VALUE such as account=vision, got {text!r}")
    return match[1], match[2]
