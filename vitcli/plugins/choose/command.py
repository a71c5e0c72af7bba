"""`vitcli choose`: which trained model suits one's own pictures, and how many more would help."""

from typing import Annotated

from typer import Argument, Option

from vitcli.cli import options as shared
from vitcli.cli.chosen import collect_changes
from vitcli.cli.console import emit_report, say
from vitcli.cli.options import with_code, with_example
from vitcli.runner.errors import ConfigError


@with_example(
    "vitcli choose imagefolder:pictures",
    "vitcli choose imagefolder:pictures --models cifar10-pocket,pets",
)
@with_code
def choose(
    data: Annotated[
        str,
        Argument(
            metavar="DATASET", help="Your own pictures or a data set: 'vitcli data ls' lists both."
        ),
    ],
    models: Annotated[
        str | None,
        Option(
            metavar="MODEL,...",
            help="Runs, bundled models and timm:NAME, with commas between them.",
            show_default="all that are on this machine",
        ),
    ] = None,
    sets: shared.Sets = None,
    skip_bad: shared.SkipBad = False,
    fit: shared.FitOption = None,
    form: shared.Format = "text",
    device: shared.Device = "auto",
    data_dir: shared.DataDir = None,
    limit_batches: shared.LimitBatches = None,
    offline: shared.Offline = False,
) -> None:
    """Find the trained model that suits your pictures, and what more pictures would add.

    A linear classifier learns from the features of each model, in five folds of the training
    pictures. Test pictures are not used. The last line is the command that tunes the best model.
    """
    from vitcli.cli.live import stages
    from vitcli.plugins.choose.answer import choose_model

    shortcuts = {"data.name": data, "data.skip_bad": skip_bad or None, "data.fit": fit}
    changes, options = collect_changes(sets, shortcuts)
    names = None if models is None else [name.strip() for name in models.split(",")]
    if names is not None and not all(names):
        raise ConfigError(f"--models {models!r}: a name is empty; is a shell variable unset?")
    with stages() as on_stage:
        report = choose_model(
            names,
            changes,
            options,
            device=device,
            data_dir=data_dir,
            limit_batches=limit_batches,
            offline=offline,
            on_message=say,
            on_stage=on_stage,
        )
    emit_report(report, form)
