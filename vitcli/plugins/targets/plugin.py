from vitcli.plugin import Plugin

NUMBERS = ("mean_average_precision", "micro_f1", "absolute_error", "rmse", "r2")

plugin = Plugin(
    about="several labels of a picture at once, or a number, as what is learned",
    rows={
        "task.name": {
            "multilabel": "vitcli.plugins.targets.spec:MULTILABEL",
            "regress": "vitcli.plugins.targets.spec:REGRESS",
        },
        "number": {name: f"vitcli.plugins.targets.spec:{name}" for name in NUMBERS},
        "extra": {
            "label_set": "vitcli.plugins.targets.columns:LABELS",
            "target": "vitcli.plugins.targets.columns:TARGET",
        },
    },
)
