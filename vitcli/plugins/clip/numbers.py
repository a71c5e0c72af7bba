from vitcli.core.metric import accuracy_of_outputs, percent

zero_shot_accuracy = accuracy_of_outputs(
    name="zero_shot_accuracy", label="zero-shot accuracy", short="zero-shot"
)
"""Accuracy of classes that are given by name, with prompts that no training caption equals."""
trained_prompts_accuracy = percent(
    name="trained_prompts_accuracy", label="accuracy with prompts of the training"
)
superclass_accuracy = percent(name="superclass_accuracy", label="accuracy of superclasses")
l2_superclass_accuracy = percent(
    name="l2_superclass_accuracy", label="accuracy of superclasses, unseen classes"
)
(
    l1_seen_pair_accuracy,
    l1_seen_class_accuracy,
    l1_seen_transformation_accuracy,
    l1_unseen_pair_accuracy,
    l1_unseen_class_accuracy,
    l1_unseen_transformation_accuracy,
) = (
    percent(name=f"l1_{seen}_{part}_accuracy", label=f"accuracy of the {part}, {seen} pairs")
    for seen in ("seen", "unseen")
    for part in ("pair", "class", "transformation")
)
