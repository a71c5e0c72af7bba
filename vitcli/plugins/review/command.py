"""`vitcli eval --review`: pictures to look at again."""

import shlex
from dataclasses import replace
from typing import Annotated, Any

from typer import Option

from vitcli.cli.console import say
from vitcli.runner.errors import ConfigError
from vitcli.runner.report.report import Report

ReviewFlag = Annotated[
    bool,
    Option(
        "--review",
        help="Write an offline page of confident errors, suspect labels, and copies with two"
        " labels; it saves corrections of a folder of pictures.",
    ),
]


def review_report(
    run: str, common: dict[str, Any], *, review: ReviewFlag = False
) -> tuple[Report, float] | None:
    if not review:
        return None
    from vitcli.cli.live import stages
    from vitcli.plugins.review.review import review_run
    from vitcli.runner.data.find import own_path
    from vitcli.runner.data.listing import split_of

    if common["split"] != "test":
        raise ConfigError("--review shows the test and the training images; leave out --split")
    options = {name: value for name, value in common.items() if name != "split"}
    with stages() as on_stage:
        found, report, accuracy = review_run(run, on_message=say, on_stage=on_stage, **options)
    name = found.spec.data.name
    if name.startswith("imagefolder:") and (root := own_path(name, common["data_dir"])):
        splits = [path for path in sorted(root.iterdir()) if split_of(path.name) == "test"]
        pictures = next((path for path in splits if path.is_dir()), root)
        words = [str(pictures), "--reject", "0.8", "--format", "csv"]
        command = f"{found.run.command('predict')} {shlex.join(words)}"
        seen = f"{root} holds training pictures: name new ones to see how sure the answers are"
        notes = [*report.notes, *([seen] if pictures == root else [])]
        report = replace(report, notes=notes, next=[*report.next, command])
    return report, accuracy
