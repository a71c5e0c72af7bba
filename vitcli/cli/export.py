"""`vitcli export`: a trained model in the formats of other programs."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from vitcli.cli.console import emit, emit_json
from vitcli.cli.options import Json, Run, refuse_empty


class Format(StrEnum):
    """The formats of an exported model."""

    onnx = "onnx"
    safetensors = "safetensors"
    pt2 = "pt2"
    card = "card"


FormatOption = Annotated[
    Format,
    typer.Option(
        "--format",
        help="Format: an ONNX model, weights, a program of torch.export, or a model card.",
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "-o", "--output", metavar="FILE", help="File to write.", show_default="RUN.SUFFIX"
    ),
]
Check = Annotated[
    bool,
    typer.Option(
        "--check/--no-check",
        help="Read the file back and compare its outputs with those of the trained model.",
    ),
]
Opset = Annotated[
    int | None,
    typer.Option(min=18, max=23, help="Version of the operators of ONNX.", show_default="18"),
]


def export(
    run: Run,
    form: FormatOption = Format.safetensors,
    output: Output = None,
    check: Check = True,
    opset: Opset = None,
    json: Json = False,
) -> None:
    """Write a model as ONNX, safetensors or pt2, or its model card.

    The model takes any number of normalised images. If its outputs differ from those of the
    trained model by more than 1e-4, no file is written and the exit code is 6.

    \b
    Example:
      vitcli export cifar10-pocket
      vitcli export cifar10-pocket --format card
    """
    from vitcli.runner.errors import ConfigError
    from vitcli.runner.run.folder import find_run
    from vitcli.runner.weights.export import BATCHES, LIMIT, OPSET, export_run

    if opset is not None and form is not Format.onnx:
        raise ConfigError(f"--opset is an option of --format onnx, not of {form}; leave it out")
    refuse_empty("-o", output and output.name)
    found = find_run(run)
    done = export_run(found, form.value, output, check=check, opset=opset or OPSET)
    following = Format.safetensors if form is Format.card else Format.card
    if json:
        emit_json(
            {
                "run": str(found.path),
                "file": str(done.file),
                "bytes": done.size,
                "output": done.output,
                "difference": done.difference,
                **done.facts,
            }
        )
        return
    emit(f"file           {done.file}")
    emit(f"size           {done.size:,} bytes")
    for label, text in done.facts.items():
        emit(f"{label:<15}{text}")
    if form is not Format.card:
        emit(f"output         {done.output}")
        sizes = " and ".join(map(str, BATCHES))
        emit(
            "difference     not measured (--no-check)"
            if done.difference is None
            else f"difference     {done.difference:.1e} with {sizes} images (limit {LIMIT:.0e})"
        )
    emit(f"next           {found.command(f'export --format {following}')}")
