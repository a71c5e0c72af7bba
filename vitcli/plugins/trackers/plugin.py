from vitcli.plugin import Plugin

plugin = Plugin(
    about="runs as CSV files and in W&B, MLflow and trackio, live or afterwards",
    rows={
        "tracker": {
            "wandb": "vitcli.plugins.trackers.live:wandb",
            "mlflow": "vitcli.plugins.trackers.live:mlflow",
            "trackio": "vitcli.plugins.trackers.live:trackio",
        }
    },
    commands={"runs export": "vitcli.plugins.trackers.command:export"},
)
