"""`vitcli import`: a run made from weights of another program."""

from pathlib import Path
from typing import Annotated

import typer

from vitcli.cli import complete
from vitcli.cli.chosen import load_changed
from vitcli.cli.console import emit, emit_json, say
from vitcli.cli.options import (
    DataDir,
    Json,
    Offline,
    RunName,
    Sets,
    WeightsFile,
    refuse_empty,
    run_folder,
)

Source = Annotated[
    str,
    typer.Argument(
        metavar="FILE|timm:NAME",
        help="Weights file: .pt of torch.save, or .safetensors; or the name of a ViT of timm.",
    ),
]
As = Annotated[
    str,
    typer.Argument(
        metavar="EXPERIMENT",
        help="Name or file of the experiment that describes the model.",
        autocompletion=complete.experiment,
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "-o", "--output", metavar="FOLDER", help="Run folder to write.", show_default="runs/NAME"
    ),
]

ClassOrder = Annotated[
    str | None,
    typer.Option(
        metavar="natural|A,B,...",
        help="Order of the classes in the file's head; timm's is natural (2 before 10).",
        show_default="as in the data set",
    ),
]


def import_(
    source: Source,
    experiment: As,
    weights: WeightsFile = None,
    name: RunName = None,
    output: Output = None,
    class_order: ClassOrder = None,
    sets: Sets = None,
    data_dir: DataDir = None,
    offline: Offline = False,
    json: Json = False,
) -> None:
    """Create a run from weights that another program trained.

    A .pt file is read in a separate process with limits on memory and time. Images are
    normalised as in the experiment, or as an export of vitcli states. If the weights
    need another normalisation, set data.mean and data.std.

    With timm:NAME, timm describes the model and its normalisation, and resizes
    positions and patches to those of the experiment. Without --weights, the published
    weights are used.

    \b
    Example:
      vitcli import vit.pt cifar10-tiny
      vitcli import timm:vit_tiny_patch16_224 cifar10-tiny --weights vit.pt
    """
    from vitcli.runner.errors import ConfigError
    from vitcli.runner.experiment.config import parse_sets
    from vitcli.runner.experiment.family import PREFIX
    from vitcli.runner.weights.convert import import_weights, tuning_command
    from vitcli.runner.weights.timm_weights import find_timm, refuse_weights_option

    refuse_empty("FILE", source)
    refuse_weights_option(source, weights)
    is_named = name is not None or output is not None
    if not is_named:
        name = Path(weights or source.removeprefix(PREFIX)).stem
    try:
        folder = run_folder(name, output) or Path()
    except ConfigError as error:
        if is_named:
            raise
        raise ConfigError(f"{name!r}, the name of the file, names no run: {error}") from error
    chosen = load_changed(experiment, parse_sets(sets))
    is_timm = source.startswith(PREFIX)
    theirs = find_timm(source, weights, offline=offline, on_message=say) if is_timm else None
    done = import_weights(
        theirs.file if theirs else Path(source),
        chosen,
        folder,
        theirs=theirs,
        data_dir=data_dir,
        offline=offline,
        class_order=class_order,
        on_message=say,
    )
    run = done.run
    if json:
        emit_json({"run": str(run.path), "new_head": done.has_new_head})
        return
    emit(f"run            {run.path}")
    following = (
        tuning_command(run, data_dir) if done.has_new_head else run.command("eval", data_dir)
    )
    emit(f"next           {following}")
