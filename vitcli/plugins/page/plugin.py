from vitcli.plugin import Plugin

plugin = Plugin(
    about="one HTML page of all runs, and the progress of a study in the terminal",
    commands={
        "runs page": "vitcli.plugins.page.command:page",
        "runs watch": "vitcli.plugins.page.command:watch",
    },
)
