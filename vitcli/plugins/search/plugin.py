from vitcli.plugin import Plugin

plugin = Plugin(
    about="search a space of configurations for the best one",
    rows={
        "file": {"search": "vitcli.plugins.search.kind:ROW"},
        "document": {"searched": "vitcli.plugins.search.document:SearchResult"},
        "study.figure": {"pareto": "vitcli.plugins.search.document:PARETO"},
    },
    commands={"search": "vitcli.plugins.search.command:search"},
)
