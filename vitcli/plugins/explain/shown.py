"""What each topic of ``vitcli explain`` computes on a model and a picture.

Axes: B batch, C channels, P patch_size, N tokens (or patches), M queries, D embed_dim, h num_heads,
d = D / h.
"""

import copy
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitcli.core.inspect.maps import attention_entropy
from vitcli.core.models.vit import VisionTransformer
from vitcli.core.nn.attention import HeadDimScale, Position
from vitcli.core.nn.norm import TokenBatchNorm
from vitcli.core.nn.patch_embed import ConvPatches, LinearPatches, patchify, unpatchify
from vitcli.core.ops.backend import attention_scores, merge_heads
from vitcli.core.randomness import keyed_generator
from vitcli.core.spec.slots import ATTN_SCALES, NORMS, PATCH_EMBEDS
from vitcli.plugins.explain import random_tensors
from vitcli.plugins.explain.drawings import arrows, bars, heat, photo, spotlight, strip
from vitcli.plugins.explain.lesson import Shown, Texts
from vitcli.plugins.explain.subject import Layer, Subject, attention_branch
from vitcli.runner.evaluate.predict import Predictor
from vitcli.runner.text import quantity

# Topic ``patches``

SIZES = (1, 2, 4, 8, 16, 32)
NUM_SHOWN = 16


def projection(subject: Subject) -> tuple[Tensor, Tensor | None, bool]:
    """Return a projection of flattened patches, (D, C P P) and (D,) or None.

    The third value is True if the projection is the model's own. A model whose patch embedding is
    not one linear map gets random weights of the same sizes.
    """
    spec = subject.model.spec
    embed: Any = next(iter(subject.model.patch_embed.children()))
    is_plain = isinstance(embed, LinearPatches) and isinstance(embed.norm, nn.Identity)
    if is_plain or isinstance(embed, ConvPatches):
        weight: Tensor = embed.proj.weight.flatten(1)
        return weight, embed.proj.bias, True
    length = subject.batch.shape[1] * spec.patch_size**2
    width = subject.sizes()["width"]
    return random_tensors.normal("projection", width, length).float() / length**0.5, None, False


@torch.no_grad()
def explain_patches(subject: Subject) -> Shown:
    model, spec, images, sizes = subject.model, subject.model.spec, subject.batch, subject.sizes()
    channels, height, width = images.shape[1:]
    side, prefix = spec.patch_size, model.num_prefix_tokens
    weight, bias, is_own = projection(subject)
    flat = F.linear(patchify(images, side), weight, bias)  # (1, N, D)
    kernel = weight.unflatten(1, (channels, side, side))
    convolved = F.conv2d(images, kernel, bias, stride=side).flatten(2).mT
    lengths = []
    for size in SIZES:
        if height % size == 0 and width % size == 0:
            patches = (height // size) * (width // size)
            tokens = patches + prefix
            row = {"patch": size, "patches": patches, "tokens": tokens, "edges": tokens**2}
            lengths.append(row)
    about = f"{spec.patch_embed!r}: {PATCH_EMBEDS[spec.patch_embed].about}"
    about += ", after a LayerNorm" if spec.patch_pre_norm else ""
    other = (
        f"This model makes its tokens in another way, with patch_embed {about}. The map E is that"
    )
    other += " of a plain ViT of the same sizes."
    shown = min(NUM_SHOWN, model.num_patches)
    return Shown(
        numbers={
            "image": [channels, height, width],
            "patch_size": side,
            "grid": list(model.grid_size),
            "patch_numbers": channels * side**2,
            "width": sizes["width"],
            "tokens": sizes["tokens"],
            "prefix": prefix,
            "lengths": lengths,
            "convolution_error": (flat - convolved).abs().max().item(),
            "is_own": is_own,
        },
        words={
            "whose": "the model's own weights" if is_own else "random weights of these sizes",
            "embedding": "" if is_own else other,
            "plain": "" if is_own else " in a plain ViT",
            "first": f"Tokens that stand for no patch: {prefix}"
            if prefix
            else "It has no CLS token",
            "pool": spec.pool,
            "shown": shown,
            "sizes": [
                row | {"own": " (this model)" if row["patch"] == side else ""} for row in lengths
            ],
        },
        drawings=[photo(subject, has_grid=True), strip(subject, shown)],
    )


# Topic ``attention``

NUM_CROSS = 5


@torch.no_grad()
def attention_steps(layer: Layer) -> dict[str, Tensor]:
    """Return each step of a layer's attention by its name, from the input to the output."""
    rule: Any = layer.attention.attend
    scaled = attention_scores(layer.query, layer.key, rule.scale())
    mixed = layer.weights @ layer.value
    bias = layer.attention.position.bias()
    after = "" if isinstance(layer.attention.proj, nn.Identity) else ", after W_O"
    biased = {} if bias is None else {"scaled scores with the bias of positions": scaled + bias}
    return {
        "tokens X": layer.tokens,
        "queries Q: what a token seeks": layer.query,
        "keys K: the label of a token": layer.key,
        "values V: what a token carries": layer.value,
        "scores Q K^T": attention_scores(layer.query, layer.key, 1.0),
        "scaled scores": scaled,
        **biased,
        "weights A: softmax of each row": layer.weights,
        "weighted sums A V": mixed,
        "heads side by side": merge_heads(mixed),
        f"output{after}": layer.output,
    }


@torch.no_grad()
def cross_attention(layer: Layer, count: int = NUM_CROSS) -> tuple[Tensor, Tensor]:
    """Return weights (1, h, M, N) and output (1, M, D) of the first M tokens as the only queries.

    Queries may come from another sequence than keys and values. Here they are tokens of the same
    picture, so the output must equal the first rows of self-attention.
    """
    attention, bias = layer.attention, layer.attention.position.bias()
    bias = None if bias is None else bias[:, :, :count]
    weights = attention.attend.weights(layer.query[:, :, :count], layer.key, bias)
    return weights, attention.proj(merge_heads(weights @ layer.value))


def explain_attention(subject: Subject) -> Shown:
    layer = subject.layers[-1]
    crossed, output = cross_attention(layer)
    parts = {
        name: {
            "shape": list(values.shape),
            "smallest": values.min().item(),
            "largest": values.max().item(),
            "deviation": values.std().item(),
        }
        for name, values in attention_steps(layer).items()
    }
    kept = layer.output.shape == layer.tokens.shape
    spec, proj = subject.model.spec, layer.attention.proj
    is_normed = spec.norm_position == "pre" and spec.norm != "none"
    parts_of_formula = {
        "b_Q, b_K and b_V": layer.attention.qkv.bias,
        "W_O": getattr(proj, "weight", None),
        "b_O": getattr(proj, "bias", None),
    }
    lacking = [name for name, tensor in parts_of_formula.items() if tensor is None]
    return Shown(
        numbers={
            "layer": len(subject.layers),
            "steps": parts,
            "row_sum_error": (layer.weights.sum(-1) - 1).abs().max().item(),
            "smallest_weight": layer.weights.min().item(),
            "cross_weights": list(crossed.shape),
            "cross_output": list(output.shape),
            "cross_error": (output - layer.output[:, : output.shape[1]]).abs().max().item(),
        },
        words={
            "output": layer.output.shape,
            "kept": ", the shape of the input" if kept else "",
            "normed": ", after its norm" if is_normed else "",
            "lacking": f" This model has no {', no '.join(lacking)}." if lacking else "",
            "strongest": [head.max().item() for head in layer.weights[0]],
        },
        drawings=[heat(head) for head in layer.weights[0, :2]],
    )


# Topic ``average``

EXAMPLE = (0.2, 0.3, 0.5)
"""The row of weights in the lecture notes."""
NUM_LARGEST = 5


@torch.no_grad()
def explain_average(subject: Subject) -> Shown:
    layer, query = subject.layers[-1], subject.query
    name, has_place = subject.token_name(query), subject.place(query) is not None
    rows = layer.weights[:, :, query : query + 1]
    head = int(attention_entropy(rows)[0].argmin())
    weights, output = layer.weights[0, head, query], layer.weights @ layer.value
    summed = passed_messages(layer)[head, query]
    shares, tokens = weights.topk(min(NUM_LARGEST, len(weights)))
    largest = [
        {"token": token, "name": subject.token_name(token), "weight": weight}
        for token, weight in zip(tokens.tolist(), shares.tolist(), strict=True)
    ]
    rest = (weights.sum() - shares.sum()).item()
    lines = [
        (row["name"].replace("column", "col."), row["weight"], f"{row['weight']:.3f}")
        for row in largest
    ]
    return Shown(
        numbers={
            "example": (torch.tensor(EXAMPLE) @ torch.eye(3)).tolist(),
            "layer": len(subject.layers),
            "head": head + 1,
            "query": name,
            "largest": largest,
            "rest": rest,
            "difference": (summed - output[0, head, query]).abs().max().item(),
        },
        words={
            "token": f"the token in {name}," if has_place else name,
            "num_largest": len(largest),
            "sum_largest": 1 - rest,
            "num_others": len(weights) - len(largest),
            "framed": " The frame is the token itself." if has_place else "",
        },
        drawings=[spotlight(subject, weights, query), bars(lines), heat(weights[None], "row")],
    )


# Topic ``graph``

NUM_STRONGEST = 8


def passed_messages(layer: Layer) -> Tensor:
    """Return the node update (h, N, d): each edge carries a weighted value to its query."""
    weights, values = layer.weights[0], layer.value[0]
    tokens = torch.arange(weights.shape[-1])
    query, key = torch.cartesian_prod(tokens, tokens).unbind(1)
    messages = weights[:, query, key, None] * values[:, key]  # (h, N N, d)
    return torch.zeros_like(values).index_add_(1, query, messages)


@torch.no_grad()
def explain_graph(subject: Subject) -> Shown:
    layer, sizes = subject.layers[-1], subject.sizes()
    weights, size = layer.weights[0].mean(0), sizes["tokens"]
    received = weights.sum(0)
    update = layer.weights[0] @ layer.value[0]
    maps = sizes["depth"] * sizes["heads"]
    order = received.argsort(descending=True)
    tenth = max(1, size // 10)
    others = weights.masked_fill(torch.eye(size, dtype=torch.bool), -1)
    values, places = others.flatten().topk(min(NUM_STRONGEST, size * size - size))
    strongest = []
    for place, weight in zip(places.tolist(), values.tolist(), strict=True):
        query, key = divmod(place, size)
        names = {"from": subject.token_name(key), "to": subject.token_name(query)}
        strongest.append(names | {"weight": weight, "key": key, "query": query})
    most = received.max().item()
    counts, edges = torch.histogram(received, 6, range=(0.0, most))
    bins = zip(edges.tolist(), edges[1:].tolist(), counts.int().tolist(), strict=False)
    lines = [(f"{low:.1f} to {high:.1f}", count, str(count)) for low, high, count in bins]
    return Shown(
        numbers={
            "nodes": size,
            "edges": size * size,
            "graphs": maps,
            "all_edges": maps * size * size,
            "strongest": strongest,
            "update_error": (passed_messages(layer) - update).abs().max().item(),
            "out_weight": weights.sum(1).mean().item(),
            "received": received.tolist(),
            "mean_received": received.mean().item(),
            "least_received": received.min().item(),
            "most_received": most,
            "most_received_by": subject.token_name(int(order[0])),
            "num_tenth": tenth,
            "share_of_tenth": (received[order[:tenth]].sum() / received.sum()).item(),
            "self_weight": weights.diagonal().mean().item(),
            "reach": random_tensors.reach_of_attention(),
            "reach_of_convolution": random_tensors.reach_of_convolution()[0],
        },
        words={"num_strongest": len(strongest)},
        drawings=[arrows(subject, strongest), spotlight(subject, received), bars(lines)],
    )


# Topic ``permutation``

ROUNDING = 10
"""A change is a rounding error if it is at most this many times the change without positions."""


def patch_order(subject: Subject) -> Tensor:
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
    order, answers = patch_order(subject), {}
    bare = copy.deepcopy(subject.model)
    bare.pos_embed = None
    for block in bare.blocks:
        attention_branch(block)[1].position = Position()
    for name, model in (("with positions", subject.model), ("without positions", bare)):
        plain = answer(subject, model)
        with model.patch_embed.register_forward_hook(lambda *seen: seen[-1][:, order]):
            moved = answer(subject, model)
        answers[name] = {
            "change": (moved - plain).abs().max().item(),
            "range": (plain.max() - plain.min()).item(),
            "answers": [best_class(subject.predictor, logits) for logits in (plain, moved)],
        }
    return answers


def answer(subject: Subject, model: VisionTransformer) -> Tensor:
    """Return the logits of the picture, or the features if the model does not classify."""
    compute = model if subject.predictor.classifies else model.features
    return compute(subject.batch)[0]


def best_class(predictor: Predictor, logits: Tensor) -> str:
    if not predictor.classifies:
        return ""
    share, best = (logits / predictor.temperature).softmax(-1).max(-1)
    return f"{predictor.names[int(best)]}, {100 * share.item():.1f} %"


def explain_permutation(subject: Subject) -> Shown:
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
        numbers={"random": random_tensors.permutation_errors(), "model": answers},
        words={
            "positions": spec.pos_embed,
            "effect": effect,
            "kind": kind,
            "bare": bare,
            "convolves": convolves if spec.ffn == "depthwise" else "",
        },
        drawings=[photo(subject), photo(subject, shuffled_pixels(subject)), bars(rows)],
    )


# Topic ``norms``


def token_spread(tokens: Tensor) -> dict[str, float]:
    """Return the ranges over tokens of mean and standard deviation of each token: (1, N, D)."""
    means, deviations = tokens.mean(-1), tokens.std(-1, correction=0)
    return {
        "min_mean": means.min().item(),
        "max_mean": means.max().item(),
        "min_deviation": deviations.min().item(),
        "max_deviation": deviations.max().item(),
    }


@torch.no_grad()
def explain_norms(subject: Subject) -> Shown:
    width, tokens, norm = subject.sizes()["width"], subject.last_tokens, subject.model.spec.norm
    norms = {
        "stored_by_layer_norm": nn.LayerNorm(width),
        "stored_by_batch_norm": nn.BatchNorm1d(width),
    }
    kinds = (nn.LayerNorm, TokenBatchNorm, nn.RMSNorm)
    used = [part for part in subject.model.modules() if isinstance(part, kinds)]
    after = token_spread(random_tensors.layer_norm(tokens))
    errors = {
        "layer": random_tensors.norm_errors(random_tensors.layer_norm),
        "batch": random_tensors.norm_errors(random_tensors.batch_norm),
    }
    rows = [
        (f"{short}, {name}", errors[name][case], f"{errors[name][case]:.2f}")
        for case, short in (("alone", "alone"), ("padded", "padded"), ("divided", "half"))
        for name in ("layer", "batch")
    ]
    return Shown(
        numbers={
            **errors,
            "before": token_spread(tokens),
            "after": after,
            **{
                name: {part: list(tensor.shape) for part, tensor in layer.state_dict().items()}
                for name, layer in norms.items()
            },
            "num_norms": len(used),
            "parameters": sum(p.numel() for part in used for p in part.parameters()),
        },
        words={
            "largest_mean": max(after["max_mean"], -after["min_mean"]),
            "num_stored": 2 * width,
            "norm": norm,
            "about_norm": NORMS[norm].about,
        },
        drawings=[bars(rows)],
    )


# Topic ``scale``

WIDTHS = (16, 64, 256)


@torch.no_grad()
def layer_scores(layer: Layer) -> dict[str, float]:
    """Return variances of queries, keys and scores of a layer, and entropies of its softmax.

    ``unscaled_entropy`` is the mean entropy in nats of the softmax of scores that are not scaled.
    """
    rule: Any = layer.attention.attend
    scale = rule.scale()
    query, key = layer.query.var().item(), layer.key.var().item()
    unscaled = rule.weights(layer.query / scale, layer.key, layer.attention.position.bias())
    return {
        "query": query,
        "key": key,
        "predicted": layer.query.shape[-1] * query * key,
        "before": attention_scores(layer.query, layer.key, 1.0).var().item(),
        "after": attention_scores(layer.query, layer.key, scale).var().item(),
        "unscaled_entropy": attention_entropy(unscaled).mean().item(),
        "entropy": attention_entropy(layer.weights).mean().item(),
    }


def explain_scale(subject: Subject) -> Shown:
    sizes, scale = subject.sizes(), subject.model.spec.attn_scale
    own, uniform = sizes["head_width"], math.log(sizes["tokens"])
    drawn = []
    for width in sorted({*WIDTHS, own}):
        before, after = random_tensors.score_variance(width)
        drawn.append({"width": width, "before": before, "after": after})
    layers = [layer_scores(layer) for layer in subject.layers]
    is_usual = type(subject.layers[0].attention.attend.scale) is HeadDimScale
    other = f"This model uses attn_scale {scale!r}: {ATTN_SCALES[scale].about}."
    rows = [
        (f"layer {i} {name}", row[key], f"{row[key]:.2f}")
        for i, row in enumerate(layers, 1)
        for name, key in (("without", "unscaled_entropy"), ("scaled", "entropy"))
    ]
    return Shown(
        numbers={
            "random": drawn,
            "layers": layers,
            "uniform_entropy": uniform,
            "wide": random_tensors.score_variance(64, variance=4)[1],
        },
        words={
            "num_heads": quantity(sizes["heads"], "head"),
            "factor": (sizes["width"] / own) ** 0.5,
            "how": f"This model divides by √{own}." if is_usual else other,
            "sharper": sum(row["unscaled_entropy"] < row["entropy"] for row in layers),
            "widths": [
                row | {"own": " (this model)" if row["width"] == own else ""} for row in drawn
            ],
        },
        drawings=[bars(rows, limit=uniform)],
    )
