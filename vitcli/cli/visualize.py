"""`vitcli visualize`: figures of trained models on one page."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Option

from vitcli.cli import options as shared
from vitcli.cli.console import emit_report, say
from vitcli.cli.options import output_option, refuse_empty, with_code, with_example
from vitcli.runner.errors import summarize_failures
from vitcli.runner.report.report import DataTable, Report

if TYPE_CHECKING:
    from vitcli.runner.run.folder import RunDir


Runs = Annotated[
    list[str], shared.AnyRun(help="Run folders, names under runs/, or bundled models.")
]
What = Annotated[
    str | None,
    Option(metavar="FIGURES", help="Figures to draw, such as curves,heads.", show_default="all"),
]
Form = Annotated[
    Literal["png", "svg", "pdf"], Option("--format", help="File format of the figures.")
]
Output = Annotated[Path, output_option("FOLDER", "Folder to write.")]
NumImages = Annotated[int, Option(min=1, help="Number of test images to average over.")]


@with_example("vitcli visualize quickstart")
@with_code
def visualize(
    runs: Runs,
    what: What = None,
    form: Form = "png",
    output: Output = Path("figures"),
    num_images: NumImages = 500,
    device: shared.Device = "auto",
    data_dir: shared.DataDir = None,
    offline: shared.Offline = False,
    json: shared.Json = False,
) -> None:
    """Draw what models learned, their attention and their errors."""
    from vitcli.runner.evaluate.predict import describe_model
    from vitcli.runner.evaluate.trained_run import TrainedRun, load_trained_run
    from vitcli.runner.run.folder import find_run
    from vitcli.runner.visualize.render import PAGE, check_names, visualize_runs

    refuse_empty("--what", what and what.strip(","))
    names = check_names([name for name in (what or "").split(",") if name])
    chosen = list({run.path.resolve(): run for run in map(find_run, runs)}.values())

    def load(run: "RunDir") -> TrainedRun:
        tested = load_trained_run(
            run,
            num_images=num_images,
            device=device,
            data_dir=data_dir,
            offline=offline,
            on_message=say,
        )
        say(describe_model(run, tested.spec))
        return tested

    done, failed = visualize_runs(
        chosen,
        names,
        output,
        form,
        load=load,
        on_figure=lambda name, outcome: say(f"  {name:<13} {outcome}"),
        on_failure=lambda error: say(f"error: {error}"),
    )
    rows = [
        {
            **drawn.numbers,
            "run": str(drawn.tested.run.path),
            "files": {name: str(path) for name, path in drawn.files.items()},
            "skipped": dict(drawn.skipped),
        }
        for drawn in done
    ]
    table = DataTable("runs", ["run"], rows, is_shown=False)
    files = [path for drawn in done for path in drawn.files.values()]
    report = Report(
        tables=[table],
        notes=[note for drawn in done for note in drawn.tested.notes],
        files=[*files, output / PAGE] if done else [],
    )
    emit_report(report, "json" if json else "text")
    if failed:
        raise summarize_failures(failed, len(chosen), "runs could not be drawn")
