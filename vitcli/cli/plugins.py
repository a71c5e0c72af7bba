"""`vitcli plugins`: what adds to the core."""

from vitcli import plugin
from vitcli.cli.console import emit_report
from vitcli.cli.options import Format, with_example
from vitcli.runner.report.report import DataTable, Report


@with_example("vitcli plugins", "vitcli -p no:explain plugins")
def plugins(form: Format = "text") -> None:
    """List the plugins and what each adds. The core works without them."""
    rows = [
        {
            "name": name,
            "state": plugin.why_off(name) or "on",
            "adds": ", ".join(added(row)),
            "version": row.version,
            "package": row.package,
            "about": row.about,
        }
        for name, row in plugin.plugins().items()
    ]
    table = DataTable("plugins", ["name", "state", "adds", "version", "package", "about"], rows)
    emit_report(Report(tables=[table]), form)


def added(row: plugin.Plugin) -> list[str]:
    rows = [name for table, rows in row.rows.items() for name in rows if table != "number"]
    options = [f"options of {command}" for command in row.options]
    return [*dict.fromkeys([*row.commands, *rows, *options])]
