from vitcli.plugin import Plugin

plugin = Plugin(
    about="runs as CSV files and in W&B, MLflow and trackio, live or afterwards",
    rows={
        "tracker": {
            name: f"vitcli.plugins.trackers.live:{name}" for name in ("wandb", "mlflow", "trackio")
        }
    },
    commands={"runs export": "vitcli.plugins.trackers.command:export"},
)
