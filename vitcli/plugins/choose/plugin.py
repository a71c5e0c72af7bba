from vitcli.plugin import Plugin

plugin = Plugin(
    about="which of several trained models suits one's pictures, and what more pictures would add",
    commands={"choose": "vitcli.plugins.choose.command:choose"},
)
