"""`vitcli eval --zero-shot`: classes that are given by name alone."""

from typing import Annotated, Any

from typer import Option

from vitcli.cli.console import say
from vitcli.cli.options import Rare
from vitcli.runner.errors import ConfigError
from vitcli.runner.report.report import Report

ZeroShotFlag = Annotated[
    bool,
    Option(
        "--zero-shot",
        help="Classify by the names of classes alone; the run must be trained with captions.",
    ),
]
ClassNames = Annotated[
    str | None,
    Rare(
        metavar="NAMES",
        help='Names of the classes for --zero-shot, such as "cat,fire truck".',
        show_default="the classes of the data set",
    ),
]


def zero_shot(
    run: str, common: dict[str, Any], *, zero_shot: ZeroShotFlag = False, classes: ClassNames = None
) -> tuple[Report, float | None] | None:
    from vitcli.plugins.clip.zero_shot import zero_shot_report

    if not zero_shot:
        if classes is not None:
            raise ConfigError("--classes names the classes for --zero-shot; add --zero-shot")
        return None
    names = None if classes is None else classes.split(",")
    return zero_shot_report(run, names, on_message=say, **common)
