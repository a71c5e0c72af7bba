"""`vitcli export`: a trained model in the formats of other programs."""

from pathlib import Path
from typing import Annotated, Literal

from typer import Option

from vitcli.cli.console import emit_report
from vitcli.cli.options import (
    Json,
    Run,
    exclude,
    output_option,
    refuse_empty,
    with_code,
    with_example,
)
from vitcli.runner.report.report import Fact, Report

FormatOption = Annotated[
    Literal["onnx", "safetensors", "pt2", "card"] | None,
    Option(
        "--format",
        help="Format: an ONNX model, weights, a program of torch.export, or a model card.",
        show_default="safetensors",
    ),
]
Output = Annotated[Path | None, output_option("FILE", "File to write.", "RUN.SUFFIX")]
To = Annotated[
    Path | None,
    Option(
        metavar="FOLDER",
        help="Write a folder: an ONNX model, its labels, its card, and a script that classifies"
        " pictures with Pillow, numpy and onnxruntime alone.",
    ),
]
Check = Annotated[
    bool,
    Option(
        "--check/--no-check",
        help="Read the file back and compare its outputs with those of the trained model.",
    ),
]


@with_example(
    "vitcli export cifar10-pocket",
    "vitcli export cifar10-pocket --format card",
    "vitcli export cifar10-pocket --to pocket",
)
@with_code
def export(
    run: Run,
    form: FormatOption = None,
    output: Output = None,
    to: To = None,
    check: Check = True,
    json: Json = False,
) -> None:
    """Write a model as ONNX, safetensors or pt2, its model card, or a folder of all that it needs.

    The model takes any number of normalised images. If its outputs differ from those of the
    trained model by more than 1e-4, no file is written and the exit code is 6.
    """
    from vitcli.plugins.exports import export, folder
    from vitcli.runner.run.folder import find_run

    refuse_empty("-o", output and output.name)
    refuse_empty("--to", to and to.name)
    exclude({"--to": to, "--format": form})
    exclude({"--to": to, "-o": output})
    exported = find_run(run)
    if to is None:
        facts = export.export_run(exported, form or "safetensors", output, check=check)
        files = [Path(facts.pop("file"))]
    else:
        facts = folder.export_folder(exported, to, check=check)
        files = facts.pop("files")
    measured = f"(generated images, limit {export.LIMIT:g})"
    about = {"difference": "(not measured)" if facts["difference"] is None else measured}
    following = "safetensors" if form == "card" else "card"
    report = Report(
        facts=[
            Fact("run", str(exported.path), text=exported.name),
            *(Fact(name, value, about=about.get(name, "")) for name, value in facts.items()),
        ],
        files=files,
        next=[] if to else [exported.command(f"export --format {following}")],
    )
    emit_report(report, "json" if json else "text")
