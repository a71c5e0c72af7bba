from vitcli.plugin import Plugin

plugin = Plugin(
    about="print a script that trains a study or a search in jobs of Slurm",
    rows={"engine": {"slurm": "vitcli.plugins.slurm.engine:ROW"}},
)
