"""`vitcli eval --probe`: a classifier on the frozen encoder's features."""

from typing import Annotated, Any, Literal

from typer import Option

from vitcli.cli.console import say
from vitcli.cli.options import Rare
from vitcli.runner.errors import ConfigError
from vitcli.runner.report.report import Report

ProbeKind = Annotated[
    Literal["linear", "knn"] | None,
    Option(
        help="Measure a classifier on the frozen encoder's features: logistic regression, or"
        " the 20 nearest neighbours."
    ),
]
Labels = Annotated[
    int | None,
    Rare(
        min=1,
        help="Number of labelled training images for --probe, balanced by class.",
        show_default="all",
    ),
]


def probe_report(
    run: str, common: dict[str, Any], *, probe: ProbeKind = None, labels: Labels = None
) -> tuple[Report, float] | None:
    from vitcli.cli.live import stages
    from vitcli.plugins.probe.probe import probe_run

    if probe is None:
        if labels is not None:
            raise ConfigError("--labels is the number of labels for a probe; add --probe linear")
        return None
    with stages() as on_stage:
        return probe_run(run, probe, labels=labels, on_message=say, on_stage=on_stage, **common)
