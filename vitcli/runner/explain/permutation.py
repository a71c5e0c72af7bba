"""Topic ``permutation``: the order of the tokens. Axes: B batch, N patches, D embed_dim."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from vitcli.core.models.vit import VisionTransformer
from vitcli.core.nn.attention import Position
from vitcli.core.nn.patch_embed import patchify, unpatchify
from vitcli.core.randomness import keyed_generator
from vitcli.runner.explain.drawings import bars, photo
from vitcli.runner.explain.lesson import Drawing, Lesson, LiveTable, error
from vitcli.runner.explain.random_tensors import permutation_errors
from vitcli.runner.explain.subject import Subject, attention_branch

ROUNDING = 10
"""A change is a rounding error if it is at most this many times the change without positions."""


class Shuffled(nn.Module):
    """A patch embedding whose tokens come in another order: (B, C, H, W) -> (B, N, D)."""

    def __init__(self, embed: nn.Module, order: Tensor) -> None:
        super().__init__()
        self.embed, self.order = embed, order

    def forward(self, images: Tensor) -> Tensor:
        return self.embed(images)[:, self.order]


def without_positions(model: VisionTransformer) -> VisionTransformer:
    """Return a copy of a model with the same weights and without its positions."""
    bare = copy.deepcopy(model)
    bare.pos_embed = None
    for block in bare.blocks:
        attention_branch(block)[1].position = Position()
    return bare


def shuffled(model: VisionTransformer, order: Tensor) -> VisionTransformer:
    """Return a copy of a model whose patch tokens are permuted before positions are added."""
    moved = copy.deepcopy(model)
    moved.patch_embed = Shuffled(model.patch_embed, order)
    return moved


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
        answers = [
            each(subject.batch)[0] if subject.classifies else each.features(subject.batch)[0]
            for each in (model, shuffled(model, order))
        ]
        plain, moved = answers
        found[name] = {
            "change": (moved - plain).abs().max().item(),
            "range": (plain.max() - plain.min()).item(),
            "answers": [_answer(subject, each) for each in answers],
        }
    return found


def _answer(subject: Subject, logits: Tensor) -> str:
    """Return the most likely class with its probability; empty if the model does not classify."""
    if not subject.classifies:
        return ""
    share, best = logits.softmax(-1).max(-1)
    return f"{subject.class_names[int(best)]}, {100 * share.item():.1f} %"


def explain(subject: Subject) -> Lesson:
    random, answers = permutation_errors(), model_answers(subject)
    numbers = {"random": random, "model": answers}
    return Lesson(
        title="Permutation: attention does not know the order",
        idea=(
            "Attention treats the tokens as a set. If the tokens are permuted, the outputs are"
            " permuted in the same way: attention is equivariant, not invariant. Only the pooled"
            " output is invariant. So a model that should know where a patch is needs positions."
        ),
        formula="Attention(P X) = P Attention(X)\nmean(P X) = mean(X)",
        tables=_tables(subject, numbers),
        findings=_findings(subject, answers),
        tries=[
            ("vitcli train quickstart -s model.pos_embed=none", "a ViT without positions"),
            ("vitcli ablate", "a study whose variants include one without positions"),
        ],
        numbers=numbers,
        drawings=_drawings(subject, answers),
    )


def _findings(subject: Subject, answers: dict[str, dict[str, Any]]) -> list[str]:
    kind = "logits" if subject.classifies else "features"
    placed, bare = answers["with positions"], answers["without positions"]
    own = subject.model.spec.pos_embed
    if placed["change"] > ROUNDING * bare["change"]:
        effect = f"changes its {kind} by up to {_size(placed['change'])}"
    elif placed["change"]:
        effect = f"changes its {kind} by {error(placed['change'])}, a rounding error"
    else:
        effect = f"does not change its {kind}"
    convolves = (
        ""
        if subject.model.spec.ffn != "depthwise"
        else (" Its FFN convolves over the grid of patches, so it depends on the order, too.")
    )
    return [
        f"The model has positions {own!r}. Permuting its {subject.model.num_patches} patches"
        f" {effect}.",
        f"The same weights without positions: the {kind} change by {error(bare['change'])}, on a"
        f" range of {bare['range']:.1f}.{convolves}",
        "The patches are permuted after the patch embedding and before positions are added.",
    ]


def _tables(subject: Subject, numbers: dict[str, Any]) -> list[LiveTable]:
    random, kind = numbers["random"], "logits" if subject.classifies else "features"
    rows = (
        ("the outputs, token by token", random["output"]),
        ("the outputs, permuted back (equivariance)", random["equivariant"]),
        ("the mean over tokens (invariance)", random["pooled"]),
        ("the mean, with positions added first", random["positions"]),
    )
    return [
        LiveTable(
            caption="One layer of attention, 64 random tokens of width 32, fp64: the largest change"
            " when the tokens are permuted.",
            header=("what is compared", "largest change"),
            rows=tuple((name, _size(value)) for name, value in rows),
        ),
        LiveTable(
            caption="The model on the picture, patches in order and permuted.",
            header=("model", "in order", "permuted", f"largest change of the {kind}"),
            rows=tuple(
                (name, *(text or "-" for text in row["answers"]), _size(row["change"]))
                for name, row in numbers["model"].items()
            ),
            num_texts=3,
        ),
    ]


def _size(value: float) -> str:
    return f"{value:.2f}" if value >= 0.01 else error(value)


def _drawings(subject: Subject, answers: dict[str, dict[str, Any]]) -> list[Drawing]:
    rows = [
        (name.replace(" positions", ""), row["change"], _size(row["change"]))
        for name, row in answers.items()
    ]
    label = "Largest change of the model's answer when patches are permuted: with and without"
    return [
        Drawing(html=photo(subject, label="picture in order"), caption="The patches in order."),
        Drawing(
            html=photo(
                subject, label="picture with shuffled patches", pixels=shuffled_pixels(subject)
            ),
            caption="The same patches permuted.",
        ),
        Drawing(html=bars(rows, label), caption=f"{label} positions."),
    ]
