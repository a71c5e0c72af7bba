from vitcli.plugin import Plugin

plugin = Plugin(
    about="train a study, a search or a comparison on a Ray cluster",
    rows={"engine": {"ray": "vitcli.plugins.ray.engine:ROW"}},
)
