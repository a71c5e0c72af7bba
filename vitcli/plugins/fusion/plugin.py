from vitcli.plugin import Plugin

plugin = Plugin(
    about="classification of an image together with a sound",
    rows={
        "task.name": {"fusion": "vitcli.plugins.fusion.spec:ROW"},
        "extra": {"sound": "vitcli.plugins.fusion.sound_file:SOUNDS"},
    },
)
