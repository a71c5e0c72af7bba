"""`vitcli export`: a trained model in the formats of other programs."""

from pathlib import Path
from typing import Annotated, Literal

from typer import Option

from vitcli.cli.console import emit_report
from vitcli.cli.options import Json, Run, output_option, refuse_empty, with_code, with_example
from vitcli.runner.report.report import Fact, Report

FormatOption = Annotated[
    Literal["onnx", "safetensors", "pt2", "card"],
    Option(
        "--format",
        help="Format: an ONNX model, weights, a program of torch.export, or a model card.",
    ),
]
Output = Annotated[Path | None, output_option("FILE", "File to write.", "RUN.SUFFIX")]
Check = Annotated[
    bool,
    Option(
        "--check/--no-check",
        help="Read the file back and compare its outputs with those of the trained model.",
    ),
]


@with_example("vitcli export cifar10-pocket", "vitcli export cifar10-pocket --format card")
@with_code
def export(
    run: Run,
    form: FormatOption = "safetensors",
    output: Output = None,
    check: Check = True,
    json: Json = False,
) -> None:
    """Write a model as ONNX, safetensors or pt2, or its model card.

    The model takes any number of normalised images. If its outputs differ from those of the
    trained model by more than 1e-4, no file is written and the exit code is 6.
    """
    from vitcli.plugins.exports.export import LIMIT, export_run
    from vitcli.runner.run.folder import find_run

    refuse_empty("-o", output and output.name)
    exported = find_run(run)
    facts = export_run(exported, form, output, check=check)
    file = facts.pop("file")
    limit = "(not measured)" if facts["difference"] is None else f"(limit {LIMIT:g})"
    following = "safetensors" if form == "card" else "card"
    report = Report(
        facts=[
            Fact("run", str(exported.path), text=exported.name),
            *(
                Fact(n, value, about=limit if n == "difference" else "")
                for n, value in facts.items()
            ),
        ],
        files=[Path(file)],
        next=[exported.command(f"export --format {following}")],
    )
    emit_report(report, "json" if json else "text")
