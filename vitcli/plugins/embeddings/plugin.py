from vitcli.plugin import Plugin

FIGURES = "vitcli.plugins.embeddings.figures"
plugin = Plugin(
    about="how positions, patches and pictures are embedded",
    rows={
        "figure": {
            "pos-embed": f"{FIGURES}:POSITIONS",
            "filters": f"{FIGURES}:FILTERS",
            "embeddings": f"{FIGURES}:EMBEDDINGS",
            "features": f"{FIGURES}:FEATURES",
        }
    },
)
