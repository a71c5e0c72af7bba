from vitcli.plugin import Plugin

plugin = Plugin(
    about="damaged files, and copies of training pictures, among one's own pictures",
    commands={"data check": "vitcli.plugins.data_check.command:check"},
)
