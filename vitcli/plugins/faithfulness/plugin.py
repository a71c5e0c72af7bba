from vitcli.plugin import Plugin

plugin = Plugin(
    about="whether maps show what the prediction needs, and depend on the model's weights",
    needs=("distance",),
    rows={"figure": {"faithfulness": "vitcli.plugins.faithfulness.figure:ROW"}},
)
