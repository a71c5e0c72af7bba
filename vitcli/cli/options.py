"""Options that several commands share, and the Typer groups that hold commands."""

import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from vitcli.cli import complete
from vitcli.cli.console import only_results


class Fit(StrEnum):
    """The ways to fit a picture to the input size of a model."""

    crop = "crop"
    pad = "pad"
    stretch = "stretch"


# Each option is a type, so that it has the same name and help in every command.
Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON document.")]
Device = Annotated[str, typer.Option(help="Device: cpu, cuda, cuda:1, mps or auto.")]
FitOption = Annotated[
    Fit | None,
    typer.Option(
        "--fit",
        help="How to fit pictures of another aspect ratio.",
        show_default="as in the training; crop",
    ),
]
Data = Annotated[
    str | None,
    typer.Option(
        help="Data set or your own pictures: 'vitcli data ls' lists both.",
        show_default="as in the experiment",
        autocompletion=complete.data_set,
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        help="Only folder to search for the data set, or the new place of a run's own pictures.",
        show_default="VITCLI_DATA, then cache",
    ),
]
Offline = Annotated[
    bool,
    typer.Option("--offline", envvar="VITCLI_OFFLINE", help="Never open a network connection."),
]
SkipBad = Annotated[
    bool, typer.Option("--skip-bad", help="Leave out pictures of a folder that cannot be read.")
]
AllowLeaks = Annotated[
    bool,
    typer.Option("--allow-leaks", help="Train although test pictures are in the training set."),
]
LimitBatches = Annotated[
    int | None,
    typer.Option(
        min=1, help="Maximum number of batches per epoch and per evaluation.", show_default="all"
    ),
]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        "-s",
        metavar="FIELD=VALUE",
        help="Change a field of the experiment; may be repeated.",
        autocompletion=complete.field,
    ),
]
Run = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="Run folder, name under runs/, or bundled model.",
        autocompletion=complete.run,
    ),
]
Track = Annotated[
    list[str] | None,
    typer.Option(
        metavar="wandb|mlflow",
        help="Also show the run in this tracker while it trains; may be repeated.",
    ),
]
Images = Annotated[
    list[str],
    typer.Argument(metavar="IMAGE", help="Picture files or folders; - is standard input."),
]
ChosenRun = Annotated[
    str | None,
    typer.Option(
        "--run",
        help="Run folder, name under runs/, or bundled model.",
        show_default="the newest classifier of real pictures, or cifar10-pocket",
        autocompletion=complete.run,
    ),
]


WeightsFile = Annotated[
    Path | None,
    typer.Option(
        "--weights",
        metavar="FILE",
        help="Weights of timm:NAME: .pt of torch.save, or .safetensors.",
        show_default="published ones",
    ),
]
Code = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FILE.py",
        help="Own code with parts; may be repeated.",
        show_default=False,
    ),
]
TrustCode = Annotated[
    bool, typer.Option("--trust-code", help="Run the copies of own code in a run folder.")
]
RunName = Annotated[
    str | None,
    typer.Option("--name", help="Name of the run; its folder is runs/NAME.", show_default=False),
]


def refuse_empty(option: str, value: object) -> None:
    """Refuse an empty value of an option.

    Raises:
        ConfigError: The value is an empty text.
    """
    if value == "":
        from vitcli.runner.errors import ConfigError

        raise ConfigError(f"{option} is empty; is a shell variable unset?")


def run_folder(name: str | None, output: Path | None) -> Path | None:
    """Return the run folder that ``--name`` or ``-o`` names; None without both.

    Raises:
        ConfigError: Both name a folder, the name is not plain, or a path is not UTF-8.
    """
    from vitcli.runner.errors import ConfigError
    from vitcli.runner.files import require_utf8

    if name is None:
        require_utf8(output or Path())
        return output
    from vitcli.runner.run.folder import named_folder

    if output is not None:
        raise ConfigError("--name and -o both name the run folder; leave out one of them")
    return named_folder(name)


def typed_files(options: Mapping[str, Any]) -> set[str]:
    """Return the experiment files among the arguments of a command."""
    from vitcli.runner.errors import ConfigError
    from vitcli.runner.experiment.config import find_experiment

    found = set()
    for name in ("experiment", "study", "name", "names"):
        value = options.get(name)
        for each in [value] if isinstance(value, str) else value or ():
            with suppress(ConfigError):  # the command says what is wrong
                found.add(str(find_experiment(each)))
    return found


def with_code(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return a command that also takes ``--code`` and ``--trust-code``."""

    @wraps(command)
    def call(
        *args: Any, code: list[Path] | None = None, trust_code: bool = False, **options: Any
    ) -> Any:
        from vitcli.runner.experiment import own_code

        own_code.state.trusts_copies = trust_code
        own_code.state.typed = typed_files(options)
        with only_results():
            own_code.load(code or [])
            return command(*args, **options)

    added = {"code": (Code, None), "trust_code": (TrustCode, False)}
    signature = inspect.signature(command)
    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=default)
        for name, (kind, default) in added.items()
    ]
    new = signature.replace(parameters=[*signature.parameters.values(), *parameters])
    call.__signature__ = new  # type: ignore[attr-defined]
    call.__annotations__ = command.__annotations__ | {n: kind for n, (kind, _) in added.items()}
    return call


def group(*, example: str = "", **options: Any) -> typer.Typer:
    """Return a Typer application with plain output, as pipes, NO_COLOR and TERM=dumb require."""
    if example:
        options["help"] += f"\n\n\b\nExample:\n  {example}"
    return typer.Typer(
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        **options,
    )
