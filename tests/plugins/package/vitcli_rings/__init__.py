from vitcli.plugin import Plugin

plugin = Plugin(
    about="attention on rings around the middle, and how round a model is",
    rows={
        "model.attention": {"rings": "vitcli_rings.attention:Rings"},
        "task.name": {"confident": "vitcli_rings.objective:Confident"},
        "figure": {"sizes": "vitcli_rings.figure:SIZES"},
    },
    commands={"roundness": "vitcli_rings.command:roundness"},
    options={"eval": "vitcli_rings.option:rings"},
)
