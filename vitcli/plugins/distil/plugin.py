from vitcli.plugin import Plugin

plugin = Plugin(
    about="imitate a trained model, the teacher (Hinton et al. 2015)",
    rows={"task.name": {"distil": "vitcli.plugins.distil.spec:ROW"}},
)
