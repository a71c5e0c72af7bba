from vitcli.plugin import Plugin

plugin = Plugin(
    about="equal, Gaussian embeddings of views (Balestriero and LeCun 2025)",
    needs=("views",),
    rows={"task.name": {"lejepa": "vitcli.plugins.lejepa.spec:ROW"}},
)
