from vitcli.plugin import Plugin

plugin = Plugin(
    about="what trainings on several views of an image share",
    rows={"number": {"knn_accuracy": "vitcli.plugins.views.spec:knn_accuracy"}},
)
