from vitcli.plugin import Plugin

plugin = Plugin(
    about="whether a change is better than the best so far, after as few seeds as possible",
    needs=("table",),
    rows={"python": {"vitcli.decide": "vitcli.plugins.decide.python:decide"}},
    commands={"decide": "vitcli.plugins.decide.command:decide"},
)
