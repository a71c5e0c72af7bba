"""`vitcli import`: a run made from weights of another program."""

from pathlib import Path
from typing import Annotated

import typer

from vitcli.cli import complete
from vitcli.cli.chosen import load_changed
from vitcli.cli.console import emit, emit_json, say
from vitcli.cli.options import DataDir, Json, Offline, RunName, Sets, run_folder

File = Annotated[
    Path,
    typer.Argument(metavar="FILE", help="Weights file: .pt of torch.save, or .safetensors."),
]
As = Annotated[
    str,
    typer.Option(
        "--experiment",
        "-e",
        help="Name or file of the experiment that describes the model.",
        autocompletion=complete.experiment,
    ),
]
Output = Annotated[
    Path | None, typer.Option("-o", "--output", help="Run folder to create.", show_default=False)
]


def import_(
    file: File,
    experiment: As,
    name: RunName = None,
    output: Output = None,
    sets: Sets = None,
    data_dir: DataDir = None,
    offline: Offline = False,
    json: Json = False,
) -> None:
    """Create a run from weights that another program trained.

    A .pt file is read in a separate process with limits on memory and time. Images are
    normalised as in the experiment. If the weights need another normalisation,
    set data.mean and data.std.

    \b
    Example:
      vitcli import vit.pt -e cifar10-tiny --name theirs
    """
    from vitcli.runner.errors import ConfigError
    from vitcli.runner.experiment.config import parse_sets
    from vitcli.runner.weights.convert import import_weights

    folder = run_folder(name, output)
    if folder is None:
        raise ConfigError("an imported run needs a name: --name NAME, or -o FOLDER")
    run = import_weights(
        file,
        load_changed(experiment, parse_sets(sets)),
        folder,
        data_dir=data_dir,
        offline=offline,
        on_message=say,
    )
    if json:
        emit_json({"run": str(run.path)})
        return
    emit(f"run            {run.path}")
    emit(f"next           {run.command('eval', data_dir)}")
