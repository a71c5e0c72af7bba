"""Topic ``permutation``: the order of the tokens. Axes: B batch, N patches, D embed_dim."""

import copy
from typing import Any

import torch
from torch import Tensor

from vitcli.core.inspect.random_tensors import permutation_errors
from vitcli.core.models.vit import VisionTransformer
from vitcli.core.nn.attention import Position
from vitcli.core.nn.patch_embed import patchify, unpatchify
from vitcli.core.randomness import keyed_generator
from vitcli.runner.evaluate.predict import Predictor
from vitcli.runner.explain.drawings import bars, photo
from vitcli.runner.explain.lesson import Shown, Texts
from vitcli.runner.explain.subject import Subject, attention_branch

ROUNDING = 10
"""A change is a rounding error if it is at most this many times the change without positions."""


def without_positions(model: VisionTransformer) -> VisionTransformer:
    """Return a copy of a model with the same weights and without its positions."""
    bare = copy.deepcopy(model)
    bare.pos_embed = None
    for block in bare.blocks:
        attention_branch(block)[1].position = Position()
    return bare


def patch_order(subject: Subject) -> Tensor:
    """Return the order of the patches that all topics use, (N,)."""
    count = subject.model.num_patches
    return torch.randperm(count, generator=keyed_generator("explain", "order"))


def shuffled_pixels(subject: Subject) -> Tensor:
    """Return the pixels of the picture with its patches in ``patch_order``, (3, H, W)."""
    size = subject.model.spec.patch_size
    patches = patchify(subject.pixels[None], size)[:, patch_order(subject)]
    return unpatchify(patches, size, subject.model.grid_size)[0]


@torch.no_grad()
def model_answers(subject: Subject) -> dict[str, dict[str, Any]]:
    """Return answers to the picture in order and shuffled, with and without positions.

    The answers are logits, or pooled features of a model that does not classify. ``change`` is the
    largest difference, and ``range`` is the largest minus the smallest number in order.
    """
    order, found = patch_order(subject), {}
    bare = without_positions(subject.model)
    for name, model in (("with positions", subject.model), ("without positions", bare)):
        plain = answer(subject, model)
        with model.patch_embed.register_forward_hook(lambda *seen: seen[-1][:, order]):
            moved = answer(subject, model)
        found[name] = {
            "change": (moved - plain).abs().max().item(),
            "range": (plain.max() - plain.min()).item(),
            "answers": [best_class(subject.predictor, each) for each in (plain, moved)],
        }
    return found


def answer(subject: Subject, model: VisionTransformer) -> Tensor:
    """Return the logits of the picture, or the features if the model does not classify."""
    classifies = subject.predictor.classifies
    found: Tensor = model(subject.batch) if classifies else model.features(subject.batch)
    return found[0]


def best_class(predictor: Predictor, logits: Tensor) -> str:
    """Return the most likely class with its probability; empty if the model does not classify."""
    if not predictor.classifies:
        return ""
    share, best = (logits / predictor.temperature).softmax(-1).max(-1)
    return f"{predictor.names[int(best)]}, {100 * share.item():.1f} %"


def explain(subject: Subject) -> Shown:
    answers, spec = model_answers(subject), subject.model.spec
    placed, bare = answers["with positions"], answers["without positions"]
    kind = "logits" if subject.predictor.classifies else "features"
    fill = Texts().format
    if placed["change"] > ROUNDING * bare["change"]:
        effect = fill("changes its {} by up to {:size}", kind, placed["change"])
    elif placed["change"]:
        effect = fill("changes its {} by {:error}, a rounding error", kind, placed["change"])
    else:
        effect = f"does not change its {kind}"
    convolves = " Its FFN convolves over the grid of patches, so it depends on the order, too."
    rows = [
        (name.replace(" positions", ""), row["change"], fill("{:size}", row["change"]))
        for name, row in answers.items()
    ]
    return Shown(
        numbers={"random": permutation_errors(), "model": answers},
        words={
            "positions": spec.pos_embed,
            "effect": effect,
            "kind": kind,
            "bare": bare,
            "convolves": convolves if spec.ffn == "depthwise" else "",
        },
        drawings=[photo(subject), photo(subject, shuffled_pixels(subject)), bars(rows)],
    )
