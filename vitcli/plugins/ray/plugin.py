from vitcli.plugin import Plugin

plugin = Plugin(
    about="train a study or a search on a Ray cluster",
    rows={"engine": {"ray": "vitcli.plugins.ray.engine:ROW"}},
)
