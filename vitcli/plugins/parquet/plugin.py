from vitcli.plugin import Plugin

plugin = Plugin(
    about="pictures in Parquet files",
    rows={"data.name": {"parquet": "vitcli.plugins.parquet.row:ROW"}},
)
