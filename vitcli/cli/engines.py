"""The options of the commands that train trials: how many at once, how long, and on what."""

import argparse
import functools
import inspect
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from vitcli.cli.options import DataDir, Device, Offline, Rare, Track, check_trackers
from vitcli.plugin import missing_for
from vitcli.runner.engines.engine import ENGINES
from vitcli.runner.errors import ConfigError, require_packages
from vitcli.runner.files import make_folder, make_output_folder

if TYPE_CHECKING:
    from vitcli.runner.study.plan import Options

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def check_name(name: str) -> str:
    if name not in ENGINES:
        known = ", ".join(map(repr, ENGINES))
        missing = missing_for(ENGINES.field, name)
        raise typer.BadParameter(missing or f"{name!r} is not one of {known}")
    return name


Place = Annotated[
    str,
    Option(
        "--engine",
        metavar=f"<{' or '.join(ENGINES)}>",
        help="Where to train: "
        + "; ".join(f"{name} ({engine.about})" for name, engine in ENGINES.items())
        + ".",
        hidden=True,
        callback=check_name,
        autocompletion=lambda: [*ENGINES],
    ),
]
Gpus = Annotated[
    float | None,
    Rare(
        min=0,
        help="Ray: GPUs of each driver; with 0.25, four share a GPU.",
        show_default="1 if there are GPUs",
    ),
]
Jobs = Annotated[
    int | None, Option("-j", "--jobs", min=1, max=256, help="Number of trials at once.")
]
Pin = Annotated[
    bool, Rare("--pin/--no-pin", help="Pin trials that run at once to CPU cores of their own.")
]
Budget = Annotated[
    str | None,
    Rare(
        metavar="2h",
        help="Stop after this time (s, m, h or d); the next call continues.",
        show_default="no limit",
    ),
]


def read_options(
    jobs: Jobs = None,
    pin: Pin = True,
    budget: Budget = None,
    *,
    device: Device = "auto",
    data_dir: DataDir = None,
    offline: Offline = False,
    track: Track = None,
) -> "Options":
    from vitcli.runner.study.plan import Options

    check_trackers(track or ())
    return Options(
        jobs=jobs,
        pin=pin,
        device=device,
        data_dir=data_dir,
        offline=offline,
        track=tuple(dict.fromkeys(track or ())),
        budget=parse_duration(budget) if budget is not None else None,
        command=shlex.join(["vitcli", *(word for word in sys.argv[1:] if word != "--rerun")]),
    )


def takes_options(command: Callable[..., None]) -> Callable[..., None]:
    """Put the parameters of ``read_options`` in place of ``options``, keyword-only ones last."""
    signature = inspect.signature(command)
    added = inspect.signature(read_options).parameters
    last = [option for option in added.values() if option.kind is option.KEYWORD_ONLY]
    first = [option for option in added.values() if option not in last]
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        parameters += first if parameter.name == "options" else [parameter]
    parameters += last

    @functools.wraps(command)
    def with_options(**given: Any) -> None:
        options = read_options(**{name: given.pop(name) for name in added})
        command(**given, options=options)

    changed: Any = with_options  # typer reads both attributes
    changed.__signature__ = signature.replace(parameters=parameters)
    changed.__annotations__ = {option.name: option.annotation for option in parameters}
    return with_options


def check_engine(name: str, jobs: int | None, gpus: float | None) -> None:
    engine = ENGINES[name]
    if gpus is not None and not engine.takes_gpus:
        raise ConfigError("--gpus is an option of --engine ray; for Slurm, type it after sbatch")
    if engine.train and not jobs:
        raise ConfigError(f"--engine {name}: say with -j how many trials run at once")
    require_packages(f"--engine {name}", filter(None, [engine.package]))


def shared_words(words: Sequence[str]) -> list[str]:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for own in (["--engine"], ["--gpus"], ["-j", "--jobs"], ["-o", "--output"]):
        parser.add_argument(*own)
    return parser.parse_known_args(words)[1]


def driver_words(root: Path) -> list[str]:
    return [*shared_words(sys.argv[1:]), "-j", "1", "-o", str(root.resolve())]


def make_logs(root: Path) -> Path:
    from vitcli.runner.engines.drivers import LOGS

    make_output_folder(root)
    make_folder(logs := root.resolve() / LOGS)
    return logs


def check_folders(output: Path | None, save: Path | None) -> None:
    """Refuse folders without a name, as of an empty option, and a file for saved results."""
    for option, folder in {"-o": output, "--save": save}.items():
        if folder is not None and not folder.name:
            raise ConfigError(f"{option} needs the name of a folder; is a shell variable unset?")
    if save and save.exists() and not save.is_dir():
        raise ConfigError(f"--save {save}: a file; name a folder")


def parse_duration(text: str) -> float:
    match = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?)([smhd])", text.strip())
    if not match or not float(match[1]):
        raise ConfigError(f"--budget takes a time such as 30m or 2h, got {text!r}")
    return float(match[1]) * UNITS[match[2]]
