from vitcli.plugin import Plugin

plugin = Plugin(
    about="models of timm and their published weights (Wightman 2019)",
    needs=("weights",),
    rows={"model.family": {"timm": "vitcli.plugins.timm.spec:ROW"}},
)
