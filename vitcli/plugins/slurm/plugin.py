from vitcli.plugin import Plugin

plugin = Plugin(
    about="print a script that trains a study, a search or a comparison in jobs of Slurm",
    rows={"engine": {"slurm": "vitcli.plugins.slurm.engine:ROW"}},
)
