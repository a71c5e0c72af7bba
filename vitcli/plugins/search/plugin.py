from vitcli.plugin import Plugin

plugin = Plugin(
    about="search a space of configurations for the best one",
    rows={"file": {"search": "vitcli.plugins.search.kind:ROW"}},
    commands={"search": "vitcli.plugins.search.command:search"},
)
