"""Options that several commands share, and the kind of Typer group that holds commands."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer


class Fit(StrEnum):
    """How a picture is brought into a model's shape."""

    crop = "crop"
    pad = "pad"
    stretch = "stretch"


# An option is a type here, so it reads and behaves the same in every command.
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps, or auto.")]
FitOption = Annotated[
    Fit,
    typer.Option(
        "--fit", help="A picture of another shape: crop as in training, pad with black, or stretch."
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(help="The only place where the data set is searched.", show_default=False),
]
Offline = Annotated[
    bool, typer.Option("--offline", envvar="VITCLI_OFFLINE", help="Never open a connection.")
]
LimitBatches = Annotated[
    int | None,
    typer.Option(
        min=1, help="Only so many batches an epoch and an evaluation.", show_default=False
    ),
]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", metavar="FIELD=VALUE", help="Change a field; may be repeated."),
]
Run = Annotated[str, typer.Argument(metavar="RUN", help="A run folder, or a name under runs/.")]
ChosenRun = Annotated[
    str | None,
    typer.Option(
        "--run",
        help="A run folder, or a name under runs/.",
        show_default="the newest, or cifar10-pocket",
    ),
]


def group(**options: Any) -> typer.Typer:
    """A Typer application with plain output, so that pipes, NO_COLOR and TERM=dumb work."""
    return typer.Typer(
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        **options,
    )
