from vitcli.plugin import Plugin

plugin = Plugin(
    about="speed and memory of models, attention and data",
    commands={"bench": "vitcli.plugins.bench.command:commands"},
)
