"""The options of the commands that train trials: how many at once, where, and on what."""

import functools
import inspect
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from vitcli.cli.options import DataDir, Device, Offline, Track

if TYPE_CHECKING:
    from vitcli.runner.study.plan import Options

MINUTES = {"m": 1, "h": 60, "d": 1440}
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

Jobs = Annotated[
    int | None,
    typer.Option(
        "-j",
        "--jobs",
        min=1,
        max=256,
        help="Number of trials at once.",
        show_default=False,
    ),
]
Pin = Annotated[
    bool,
    typer.Option(
        "--pin/--no-pin",
        help="Pin trials that run at once to CPU cores of their own.",
        hidden=True,
    ),
]
Engine = Annotated[
    str,
    typer.Option(
        help="Where to train: local (this machine), ray or slurm.",
        hidden=True,
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="Ray: address of a running cluster; auto finds the one of this machine.",
        show_default="RAY_ADDRESS, or a new Ray on this machine",
        hidden=True,
    ),
]


def read_profile(context: typer.Context, file: Path | None) -> None:
    """Take the options of a profile as defaults, so that typed options win.

    Raises:
        ConfigError: The file cannot be read, or one of its keys is no option of a cluster.
    """
    if file is None:
        return
    from vitcli.runner.errors import ConfigError
    from vitcli.runner.experiment.yaml_text import read_mapping
    from vitcli.runner.text import did_you_mean

    parameters = inspect.signature(read_options).parameters.values()
    known = [e.name.replace("_", "-") for e in parameters if e.kind is not e.KEYWORD_ONLY]
    document, defaults = read_mapping(file), {}
    for key, value in document.data.items():
        where = document.where((key,))
        if key not in known or key == "profile":
            hint = did_you_mean(str(key), known)
            raise ConfigError(f"{where}: no option of a cluster is called {key!r}{hint}")
        if value is not None:
            defaults[key.replace("-", "_")] = profile_value(context, key, value, where)
    context.default_map = defaults


def profile_value(context: typer.Context, key: str, value: Any, where: str) -> Any:
    """Return a value of a profile, which is a list for an option that may be repeated.

    Raises:
        ConfigError: The option does not take the value.
    """
    from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

    from vitcli.cli.usage import explain_value
    from vitcli.runner.errors import ConfigError

    option: Any = next(e for e in context.command.params if e.name == key.replace("-", "_"))
    kind, info = get_args(inspect.signature(read_options).parameters[option.name].annotation)
    if option.multiple and not isinstance(value, list):
        value = [value]
    limited: Any = Annotated[kind, Field(ge=info.min, le=info.max)]
    numbers_are_texts = ConfigDict(coerce_numbers_to_str=True)
    try:
        return TypeAdapter(limited, config=numbers_are_texts).validate_python(value)
    except ValidationError as error:
        raise ConfigError(f"{where}: {explain_value(option, context.command.callback)}") from error


Profile = Annotated[
    Path | None,
    typer.Option(
        "--profile",
        metavar="FILE.yaml",
        callback=read_profile,
        is_eager=True,
        help="File with options of a cluster, without --.",
        show_default=False,
    ),
]
Cpus = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Ray, Slurm: CPU cores of each trial.",
        show_default="the threads of the study",
        hidden=True,
    ),
]
Gpus = Annotated[
    float | None,
    typer.Option(
        min=0,
        help="Ray, Slurm: GPUs of each trial. With Ray, 0.25 lets four trials share a GPU.",
        show_default="Ray: 1 if there are GPUs",
        hidden=True,
    ),
]
Memory = Annotated[
    float | None,
    typer.Option(
        min=0.1,
        metavar="GB",
        help="Ray, Slurm: memory of each trial in GB.",
        show_default="not limited by vitcli",
        hidden=True,
    ),
]
Partition = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Slurm: partition.", show_default="the cluster's own", hidden=True
    ),
]
TimeLimit = Annotated[
    str | None,
    typer.Option(
        metavar="2h",
        help="Slurm: time limit of each job (m, h or d). A trial that needs longer continues in"
        " another job.",
        show_default="1h",
        hidden=True,
    ),
]
Sbatch = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="Slurm: another option of sbatch, such as account=vision; may be repeated.",
        hidden=True,
    ),
]

Budget = Annotated[
    str | None,
    typer.Option(
        metavar="2h",
        help="Stop after this time (s, m, h or d); the next call continues.",
        show_default="no limit",
        hidden=True,
    ),
]


def read_options(
    jobs: Jobs = None,
    pin: Pin = True,
    budget: Budget = None,
    engine: Engine = "local",
    address: Address = None,
    cpus: Cpus = None,
    gpus: Gpus = None,
    memory: Memory = None,
    partition: Partition = None,
    time_limit: TimeLimit = None,
    sbatch: Sbatch = None,
    profile: Profile = None,
    *,
    device: Device = "auto",
    data_dir: DataDir = None,
    offline: Offline = False,
    track: Track = None,
) -> "Options":
    """Return how trials are trained."""
    from vitcli.runner.engines.engine import Cluster
    from vitcli.runner.study.plan import Options

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
    if cluster != Cluster():
        from vitcli.runner.engines.make import check_engine

        check_engine(cluster)
    if track:
        from vitcli.runner.trackers.live import check_trackers

        check_trackers(track)
    return Options(
        jobs=jobs,
        cluster=cluster,
        pin=pin,
        device=device,
        data_dir=data_dir,
        offline=offline,
        track=tuple(dict.fromkeys(track or ())),
        budget=parse_duration(budget) if budget is not None else None,
        command=shlex.join(["vitcli", *(word for word in sys.argv[1:] if word != "--rerun")]),
    )


def takes_options(command: Callable[..., None]) -> Callable[..., None]:
    """Put the parameters of ``read_options`` in the place of a command's ``options``.

    The keyword-only ones come last.
    """
    own = inspect.signature(command)
    added = inspect.signature(read_options).parameters
    last = [each for each in added.values() if each.kind is each.KEYWORD_ONLY]
    parameters: list[inspect.Parameter] = []
    for each in own.parameters.values():
        is_place = each.name == "options"
        parameters += [e for e in added.values() if e not in last] if is_place else [each]
    parameters += last

    @functools.wraps(command)
    def with_options(**given: Any) -> None:
        options = read_options(**{name: given.pop(name) for name in added})
        command(**given, options=options)

    changed: Any = with_options  # typer reads both attributes
    changed.__signature__ = own.replace(parameters=parameters)
    changed.__annotations__ = {each.name: each.annotation for each in parameters}
    return with_options


def check_folders(output: Path | None, save: Path | None) -> None:
    """Refuse folders without a name, as of an empty option, and a file for saved results."""
    from vitcli.runner.errors import ConfigError

    for option, folder in {"-o": output, "--save": save}.items():
        if folder is not None and not folder.name:
            raise ConfigError(f"{option} needs the name of a folder; is a shell variable unset?")
    if save and save.exists() and not save.is_dir():
        raise ConfigError(f"--save {save}: a file; name a folder")


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


def parse_duration(text: str) -> float:
    """Return a time such as ``90s``, ``30m``, ``1.5h`` or ``2d`` in seconds."""
    from vitcli.runner.errors import ConfigError

    match = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?)([smhd])", text.strip())
    if not match or not float(match[1]):
        raise ConfigError(f"--budget takes a time such as 30m or 2h, got {text!r}")
    return float(match[1]) * UNITS[match[2]]
