from vitcli.plugin import Plugin

NUMBERS = (
    *("zero_shot_accuracy", "trained_prompts_accuracy"),
    *("superclass_accuracy", "l2_superclass_accuracy"),
    *(f"l1_seen_{part}_accuracy" for part in ("pair", "class", "transformation")),
    *(f"l1_unseen_{part}_accuracy" for part in ("pair", "class", "transformation")),
)

plugin = Plugin(
    about="contrastive training of images with captions (Radford et al. 2021)",
    rows={
        "task.name": {"clip": "vitcli.plugins.clip.spec:ROW"},
        "number": {name: f"vitcli.plugins.clip.spec:{name}" for name in NUMBERS},
        "extra": {"caption": "vitcli.plugins.clip.tokens:CAPTION"},
    },
    options={"eval": "vitcli.plugins.clip.command:zero_shot"},
)
