from vitcli.plugin import Plugin

plugin = Plugin(
    about="masked autoencoders (He et al. 2022)",
    rows={
        "task.name": {"mae": "vitcli.plugins.mae.spec:ROW"},
        "number": {
            "masked_mse": "vitcli.plugins.mae.spec:masked_mse",
            "mse_ratio": "vitcli.plugins.mae.spec:mse_ratio",
        },
    },
)
