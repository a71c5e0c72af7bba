from vitcli.plugin import Plugin

plugin = Plugin(
    about="weights files that other programs wrote, as runs",
    commands={"import": "vitcli.plugins.weights.command:import_"},
)
