from vitcli.plugin import Plugin

plugin = Plugin(
    about="lessons about the ideas behind a Vision Transformer, with numbers of a trained model",
    commands={"explain": "vitcli.plugins.explain.command:explain"},
)
