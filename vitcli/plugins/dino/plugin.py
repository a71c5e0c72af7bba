from vitcli.plugin import Plugin

plugin = Plugin(
    about="self-distillation between views of an image (Caron et al. 2021)",
    needs=("views",),
    rows={"task.name": {"dino": "vitcli.plugins.dino.spec:ROW"}},
)
