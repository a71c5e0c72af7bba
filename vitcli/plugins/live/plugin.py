from vitcli.plugin import Plugin

plugin = Plugin(
    about="pages to explore attention in a browser",
    rows={
        "map page": {"explorer": "vitcli.plugins.live.explore:Explorer"},
        "interactive figure": {"explorer": "vitcli.plugins.live.explore:explorer_figure"},
    },
)
