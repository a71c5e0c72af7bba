from vitcli.plugin import Plugin

plugin = Plugin(
    about="classification of an image together with a sound",
    rows={
        "task.name": {"fusion": "vitcli.plugins.fusion.spec:ROW"},
        "number": {
            "image_accuracy": "vitcli.plugins.fusion.spec:image_accuracy",
            "sound_accuracy": "vitcli.plugins.fusion.spec:sound_accuracy",
        },
        "extra": {"sound": "vitcli.plugins.fusion.sounds:SOUNDS"},
    },
)
