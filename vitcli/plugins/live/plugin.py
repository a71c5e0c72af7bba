from vitcli.plugin import Plugin

plugin = Plugin(
    about="pages to explore attention in a browser, also with the model inside",
    rows={
        "map page": {
            "explorer": "vitcli.plugins.live.explore:Explorer",
            "live": "vitcli.plugins.live.explore:LiveExplorer",
        },
        "interactive figure": {"explorer": "vitcli.plugins.live.explore:explorer_figure"},
    },
)
