from vitcli.plugin import Plugin

plugin = Plugin(
    about="data sets of the Hugging Face Hub",
    needs=("parquet",),
    rows={"data.name": {"hf": "vitcli.plugins.hf.row:ROW"}},
)
