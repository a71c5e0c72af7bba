"""How far zero-shot recognition goes: levels of distance to the training captions.

Level L0 has held-out templates for trained classes. L1 has combinations of transformation and class
that no training image had. L2 has classes without training images. Axes: N images, K classes.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from vitcli.core.metrics.classification import accuracy
from vitcli.core.objectives.clip.captions import CHANGES


def pair_accuracies(outputs: Mapping[str, Tensor]) -> dict[str, float]:
    """Return level L1: both words, and each of them, on seen and unseen combinations.

    ``seen_subject`` and ``seen_found`` are the true and the recognised subjects (N,) of images with
    a trained combination, the other two those of an unseen one. Without them nothing is returned.
    Chance is 1 / (7 K) for a pair, 1 / K for a class and 1 / 7 for a transformation.
    """
    measured: dict[str, float] = {}
    count = len(CHANGES)
    for name in ("seen", "unseen"):
        if f"{name}_found" not in outputs:
            continue
        wanted, found = outputs[f"{name}_subject"], outputs[f"{name}_found"]
        right = {
            "pair": wanted == found,
            "class": wanted // count == found // count,
            "transformation": wanted % count == found % count,
        }
        measured |= {f"l1_{name}_{k}_accuracy": v.double().mean().item() for k, v in right.items()}
    return measured


def unseen_accuracies(
    outputs: Mapping[str, Tensor], groups: Sequence[int], held_out: Tensor
) -> dict[str, float]:
    """Return the accuracy of superclasses, and level L2 if classes are held out, a mask (K,).

    L2 is measured on images of held-out classes only: their superclass, their class among the
    held-out classes, and their class among all classes. ``groups`` has the superclass of each
    class.
    """
    labels, logits, group_logits = (outputs[k] for k in ("labels", "logits", "group_logits"))
    wanted = torch.tensor(groups, device=labels.device)[labels]
    measured = {"superclass_accuracy": accuracy(group_logits, wanted)}
    is_unseen = held_out[labels]
    if is_unseen.any():
        classes = held_out.nonzero().flatten()
        place = (labels[is_unseen][:, None] == classes).int().argmax(1)
        measured |= {
            "l2_superclass_accuracy": accuracy(group_logits[is_unseen], wanted[is_unseen]),
            "l2_accuracy_among_unseen": accuracy(logits[is_unseen][:, classes], place),
            "l2_accuracy_among_all": accuracy(logits[is_unseen], labels[is_unseen]),
        }
    return measured
