"""Topic ``graph``: attention as a complete directed graph. Axes: N tokens, h heads."""

from typing import Any

import torch
from torch import Tensor

from vitcli.core.inspect.random_tensors import reach_of_attention, reach_of_convolution
from vitcli.runner.explain.drawings import arrows, bars, spotlight
from vitcli.runner.explain.lesson import Shown
from vitcli.runner.explain.subject import Layer, Subject

NUM_STRONGEST = 8


def strongest_edges(weights: Tensor, count: int = NUM_STRONGEST) -> list[tuple[int, int, float]]:
    """Return the largest weights (N, N) off the diagonal as (query, key, weight)."""
    size = len(weights)
    others = weights.masked_fill(torch.eye(size, dtype=torch.bool), -1)
    values, places = others.flatten().topk(min(count, size * size - size))
    pairs = (divmod(place, size) for place in places.tolist())
    return [(*pair, value) for pair, value in zip(pairs, values.tolist(), strict=True)]


def passed_messages(layer: Layer) -> Tensor:
    """Return the node update (h, N, d): each edge carries a weighted value to its query."""
    weights, values = layer.weights[0], layer.value[0]
    size = weights.shape[-1]
    query, key = (
        part.flatten() for part in torch.meshgrid([torch.arange(size)] * 2, indexing="ij")
    )
    messages = weights[:, query, key, None] * values[:, key]  # (h, N N, d)
    return torch.zeros_like(values).index_add_(1, query, messages)


@torch.no_grad()
def measure(subject: Subject) -> dict[str, Any]:
    """Return the numbers of the graph of the last layer, mean over heads."""
    layer, sizes = subject.layers[-1], subject.sizes()
    weights, size = layer.weights[0].mean(0), sizes["tokens"]
    received = weights.sum(0)
    update = layer.weights[0] @ layer.value[0]
    maps = sizes["depth"] * sizes["heads"]
    order = received.argsort(descending=True)
    tenth = max(1, size // 10)
    return {
        "nodes": size,
        "edges": size * size,
        "graphs": maps,
        "all_edges": maps * size * size,
        "strongest": [
            {"from": subject.token_name(key), "to": subject.token_name(query), "weight": weight}
            | {"key": key, "query": query}
            for query, key, weight in strongest_edges(weights)
        ],
        "update_error": (passed_messages(layer) - update).abs().max().item(),
        "out_weight": weights.sum(1).mean().item(),
        "received": received.tolist(),
        "mean_received": received.mean().item(),
        "least_received": received.min().item(),
        "most_received": received.max().item(),
        "most_received_by": subject.token_name(int(order[0])),
        "num_tenth": tenth,
        "share_of_tenth": (received[order[:tenth]].sum() / received.sum()).item(),
        "self_weight": weights.diagonal().mean().item(),
    }


def explain(subject: Subject) -> Shown:
    numbers = measure(subject)
    numbers |= {"reach": reach_of_attention(), "reach_of_convolution": reach_of_convolution()[0]}
    received = torch.tensor(numbers["received"])
    counts, edges = torch.histogram(received, 6, range=(0.0, numbers["most_received"]))
    bins = zip(edges.tolist(), edges[1:].tolist(), counts.int().tolist(), strict=False)
    lines = [(f"{low:.1f} to {high:.1f}", count, str(count)) for low, high, count in bins]
    return Shown(
        numbers=numbers,
        words={"num_strongest": len(numbers["strongest"])},
        drawings=[
            arrows(subject, numbers["strongest"]),
            spotlight(subject, received),
            bars(lines),
        ],
    )
