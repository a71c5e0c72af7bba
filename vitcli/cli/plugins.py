"""`vitcli plugins`: what adds to the core."""

from vitcli import plugin
from vitcli.cli.console import emit_report
from vitcli.cli.options import Format
from vitcli.runner.report.report import DataTable, Report


def plugins(form: Format = "text") -> None:
    """List the plugins and what each adds. The core works without them.

    \b
    Example:
      vitcli plugins
      vitcli -p no:explain plugins
    """
    rows = [
        {
            "name": name,
            "state": plugin.why_off(name) or "on",
            "adds": ", ".join([*row.commands, *(n for rows in row.rows.values() for n in rows)]),
            "about": row.about,
        }
        for name, row in plugin.plugins().items()
    ]
    table = DataTable("plugins", ["name", "state", "adds", "about"], rows)
    emit_report(Report(tables=[table]), form)
