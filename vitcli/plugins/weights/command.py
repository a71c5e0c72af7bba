"""`vitcli import`: a run made from weights of another program."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from vitcli.cli import complete
from vitcli.cli import options as shared
from vitcli.cli.chosen import load_changed
from vitcli.cli.console import emit_report, say
from vitcli.cli.options import output_option, refuse_empty, run_folder, with_example
from vitcli.runner.report.report import Report, facts_of

Source = Annotated[
    str, Argument(metavar="FILE", help="Weights file: .pt of torch.save, or .safetensors.")
]
As = Annotated[
    str,
    Argument(
        metavar="EXPERIMENT",
        help="Name or file of the experiment that describes the model.",
        autocompletion=complete.experiment,
    ),
]
Output = Annotated[Path | None, output_option("FOLDER", "Run folder to write.", "runs/NAME")]
ClassOrder = Annotated[
    str | None,
    Option(
        metavar="natural|A,B,...",
        help="Order of the classes in the file's head; timm's is natural (2 before 10).",
        show_default="as in the data set",
    ),
]


@with_example("vitcli import vit.pt cifar10-tiny")
def import_(
    source: Source,
    experiment: As,
    name: shared.RunName = None,
    output: Output = None,
    class_order: ClassOrder = None,
    sets: shared.Sets = None,
    data_dir: shared.DataDir = None,
    offline: shared.Offline = False,
    form: shared.Format = "text",
) -> None:
    """Create a run from weights that another program trained.

    The model has the names of timm's VisionTransformer or those of vitcli, and the sizes of
    the experiment. Images are normalised as in the experiment, or as an export of vitcli
    states. If the weights need another normalisation, set data.mean and data.std.
    """
    from vitcli.plugins.weights.tensors import import_weights
    from vitcli.runner.experiment.config import parse_sets

    refuse_empty("FILE", source)
    if name is None and output is None:
        name = Path(source).stem
    run = import_weights(
        Path(source),
        load_changed(experiment, parse_sets(sets)),
        run_folder(name, output) or Path(),
        data_dir=data_dir,
        offline=offline,
        class_order=class_order,
        on_message=say,
    )
    report = Report(facts=facts_of(run=str(run.path)), next=[run.command("eval", data_dir)])
    emit_report(report, form)
