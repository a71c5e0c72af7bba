"""`vitcli plugins`: what adds to the core."""

from itertools import chain

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
            "adds": ", ".join(dict.fromkeys([*row.commands, *chain(*row.rows.values())])),
            "about": row.about,
        }
        for name, row in plugin.plugins().items()
    ]
    table = DataTable("plugins", ["name", "state", "adds", "about"], rows)
    emit_report(Report(tables=[table]), form)
