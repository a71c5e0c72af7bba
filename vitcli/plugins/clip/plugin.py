from vitcli.plugin import Plugin

plugin = Plugin(
    about="contrastive training of images with captions (Radford et al. 2021)",
    rows={
        "task.name": {"clip": "vitcli.plugins.clip.spec:ROW"},
        "extra": {"caption": "vitcli.plugins.clip.caption_file:CAPTION"},
    },
    options={"eval": "vitcli.plugins.clip.command:zero_shot"},
)
