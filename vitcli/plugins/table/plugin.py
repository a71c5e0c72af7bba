from vitcli.plugin import Plugin

plugin = Plugin(
    about="tables and statistics of results that another program trained",
    rows={"python": {"vitcli.table": "vitcli.plugins.table.results_file:table"}},
    commands={"table": "vitcli.plugins.table.command:table"},
)
