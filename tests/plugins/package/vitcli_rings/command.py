import typer

from vitcli.cli.console import emit_report
from vitcli.runner.report.report import Fact, Report
from vitcli.runner.run.folder import find_run


def roundness(run: str) -> None:
    """Say how round a model is."""
    emit_report(Report(facts=[Fact("roundness", find_run(run).spec().model.depth)]), "json")


def count(
    run: str, common: dict, *, rings: bool = typer.Option(False, "--rings", help="Count rings.")
) -> tuple[Report, None] | None:
    return (Report(facts=[Fact("rings", common["split"])]), None) if rings else None
