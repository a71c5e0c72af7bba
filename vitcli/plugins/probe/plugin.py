from vitcli.plugin import Plugin

plugin = Plugin(
    about="classifiers on the frozen encoder's features: logistic regression, nearest neighbours",
    options={"eval": "vitcli.plugins.probe.command:probe_report"},
)
