from typing import Annotated

import typer

from vitcli.runner.report.report import Fact, Report


def rings(
    run: str,
    common: dict,
    *,
    rings: Annotated[bool, typer.Option("--rings", help="Name the split.")] = False,
):
    return (Report(facts=[Fact("rings", common["split"])]), None) if rings else None
