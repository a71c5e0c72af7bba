from vitcli.plugin import Plugin

NUMBERS = (
    "zero_shot_accuracy",
    "trained_prompts_accuracy",
    "superclass_accuracy",
    "l2_superclass_accuracy",
    "l1_seen_pair_accuracy",
    "l1_seen_class_accuracy",
    "l1_seen_transformation_accuracy",
    "l1_unseen_pair_accuracy",
    "l1_unseen_class_accuracy",
    "l1_unseen_transformation_accuracy",
)

plugin = Plugin(
    about="contrastive training of images with captions (Radford et al. 2021)",
    rows={
        "task.name": {"clip": "vitcli.plugins.clip.spec:ROW"},
        "number": {name: f"vitcli.plugins.clip.numbers:{name}" for name in NUMBERS},
        "extra": {"caption": "vitcli.plugins.clip.caption_file:CAPTION"},
    },
    options={"eval": "vitcli.plugins.clip.command:zero_shot"},
)
