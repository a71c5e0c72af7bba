"""`vitcli visualize`: figures of trained models, and a page that holds them."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitcli.cli.app import DataDir, Device, Json, Offline, app
from vitcli.cli.console import emit, emit_json, say, table

if TYPE_CHECKING:
    from vitcli.runner.visualize.write import Visualized


class FigureFormat(StrEnum):
    """How a figure is written."""

    png = "png"
    svg = "svg"
    pdf = "pdf"


@app.command()
def visualize(
    runs: Annotated[
        list[str], typer.Argument(metavar="RUN", help="Run folders, or names under runs/.")
    ],
    what: Annotated[
        str,
        typer.Option(metavar="FIGURES", help="Such as curves,heads.", show_default="all"),
    ] = "",
    form: Annotated[
        FigureFormat, typer.Option("--format", help="Of the figures' files.")
    ] = FigureFormat.png,
    output: Annotated[Path, typer.Option("-o", "--output", help="The folder to write to.")] = Path(
        "figures"
    ),
    num_images: Annotated[
        int, typer.Option(min=1, help="Test images that averages are taken over.")
    ] = 500,
    device: Device = "auto",
    data_dir: DataDir = None,
    offline: Offline = False,
    json: Json = False,
) -> None:
    """Draw what a model learned, where it looks, what it gets wrong."""
    from vitcli.runner.errors import ConfigError, UserError, partly
    from vitcli.runner.evaluate import introduced
    from vitcli.runner.files import commit
    from vitcli.runner.run_dir import find_run
    from vitcli.runner.visualize.page import html
    from vitcli.runner.visualize.subject import load_subject
    from vitcli.runner.visualize.write import PAGE, check_names
    from vitcli.runner.visualize.write import visualize as draw

    names = check_names([name for name in what.split(",") if name])
    if output.exists() and not output.is_dir():
        raise ConfigError(f"-o {output}: not a folder")
    found = list({run.path.resolve(): run for run in map(find_run, runs)}.values())
    taken: set[str] = set()
    done: list[Visualized] = []
    failed: list[UserError] = []
    for run in found:
        try:
            subject = load_subject(
                run,
                num_images=num_images,
                device=device,
                data_dir=data_dir,
                offline=offline,
                on_message=say,
            )
            say(introduced(subject.predictor))
            done.append(draw(subject, names, output / free(subject.slug, taken), form.value, tell))
        except UserError as error:
            if len(found) == 1:
                raise
            say(f"error: {error}")
            failed.append(error)
    if done:
        commit(output / PAGE, html(done))
    if json:
        emit_json([document(each) for each in done])
    else:
        for each in done:
            emit(text(each))
        if done:
            emit(f"page  {output / PAGE}")
    if failed:
        raise partly(failed, len(found), "runs could not be drawn")


def free(name: str, taken: set[str]) -> str:
    """A folder's name that no other run of this call has: ``x``, ``x-2``, ..."""
    number, chosen = 1, name
    while chosen in taken:
        number += 1
        chosen = f"{name}-{number}"
    taken.add(chosen)
    return chosen


def tell(name: str, outcome: str) -> None:
    say(f"  {name:<13} {outcome}")


def document(each: "Visualized") -> dict[str, Any]:
    """The JSON document of one run."""
    return {
        **each.numbers,
        "run": str(each.subject.run.path),
        "files": {name: str(path) for name, path in each.files.items()},
        "skipped": dict(each.skipped),
    }


def text(each: "Visualized") -> str:
    """The numbers in short, as tables."""
    blocks = []
    if found := each.numbers.get("distance"):
        blocks += [distances(found), claims(found)]
    if found := each.numbers.get("faithfulness"):
        blocks.append(faithfulness(found))
    return "\n\n".join([each.subject.name, *blocks]) + "\n"


def distances(found: dict[str, Any]) -> str:
    rows = [
        [
            str(row["layer"]),
            f"{row['distance']:.2f}",
            f"{row['of_uniform']:.2f}",
            f"{100 * row['near_share']:.0f} %",
            f"{row['entropy']:.2f}",
        ]
        for row in found["layers"]
    ]
    head = ["layer", "attention distance, px", "of uniform", "within 3x3", "entropy, nats"]
    return table(head, rows, numeric=range(5))


def claims(found: dict[str, Any]) -> str:
    rows = [[each["claim"], each["verdict"], each["measured"]] for each in found["claims"]]
    return table(["claim", "verdict", "measured"], rows)


def faithfulness(found: dict[str, Any]) -> str:
    rows = [
        [
            row["method"],
            f"{row['deletion_area']:.3f}",
            f"{row['insertion_area']:.3f}",
            f"{row['gap']:+.3f}",
        ]
        for row in found["methods"]
    ]
    head = [f"map (n = {found['n']})", "deletion", "insertion", "insertion - deletion"]
    return table(head, rows, numeric=range(1, 4))
