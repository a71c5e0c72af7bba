"""`vitcli eval --review`: pictures to look at again."""

from typing import Annotated, Any

from typer import Option

from vitcli.cli.console import say
from vitcli.runner.errors import ConfigError
from vitcli.runner.report.report import Report

ReviewFlag = Annotated[
    bool,
    Option(
        "--review",
        help="Write an offline page of confident errors and suspect labels; it saves corrections of"
        " a folder of pictures.",
    ),
]


def review_report(
    run: str, common: dict[str, Any], *, review: ReviewFlag = False
) -> tuple[Report, float] | None:
    if not review:
        return None
    from vitcli.cli.live import stages
    from vitcli.plugins.review.review import review_run

    if common["split"] != "test":
        raise ConfigError("--review shows the test and the training images; leave out --split")
    options = {name: value for name, value in common.items() if name != "split"}
    with stages() as on_stage:
        return review_run(run, on_message=say, on_stage=on_stage, **options)
