"""`vitcli visualize`: figures of trained models, and a page that holds them."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitcli.cli.console import emit, emit_json, say, table
from vitcli.cli.options import DataDir, Device, Json, Offline

if TYPE_CHECKING:
    from vitcli.runner.visualize.render import VisualizedRun


class FigureFormat(StrEnum):
    """How a figure is written."""

    png = "png"
    svg = "svg"
    pdf = "pdf"


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
    from vitcli.runner.errors import partly
    from vitcli.runner.evaluate.predict import introduced
    from vitcli.runner.run.folder import RunDir, find_run
    from vitcli.runner.visualize.multi_run import PAGE, visualize_runs
    from vitcli.runner.visualize.render import check_names
    from vitcli.runner.visualize.run_on_test_set import RunOnTestSet, load_run_on_test_set

    names = check_names([name for name in what.split(",") if name])
    found = list({run.path.resolve(): run for run in map(find_run, runs)}.values())

    def load(run: RunDir) -> RunOnTestSet:
        tested = load_run_on_test_set(
            run,
            num_images=num_images,
            device=device,
            data_dir=data_dir,
            offline=offline,
            on_message=say,
        )
        say(introduced(tested.predictor))
        return tested

    done, failed = visualize_runs(
        found, names, output, form.value, load=load, on_figure=tell, on_failure=complain
    )
    if json:
        emit_json([document(each) for each in done])
    elif done:
        emit("\n".join([*map(text, done), f"page  {output / PAGE}"]))
    if failed:
        raise partly(failed, len(found), "runs could not be drawn")


def tell(name: str, outcome: str) -> None:
    say(f"  {name:<13} {outcome}")


def complain(error: Exception) -> None:
    say(f"error: {error}")


def document(each: "VisualizedRun") -> dict[str, Any]:
    """The JSON document of one run."""
    return {
        **each.numbers,
        "run": str(each.tested.run.path),
        "files": {name: str(path) for name, path in each.files.items()},
        "skipped": dict(each.skipped),
    }


def text(each: "VisualizedRun") -> str:
    """The numbers in short, as tables."""
    blocks = []
    if found := each.numbers.get("distance"):
        blocks += [distances(found), claims(found)]
    if found := each.numbers.get("faithfulness"):
        blocks.append(faithfulness(found))
    return "\n\n".join([each.tested.name, *blocks]) + "\n"


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
