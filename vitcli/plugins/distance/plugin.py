from vitcli.plugin import Plugin

plugin = Plugin(
    about="how far attention reaches, and whether it reaches as far without a training",
    rows={"figure": {"distance": "vitcli.plugins.distance.figure:ROW"}},
)
