"""Topic ``graph``: attention as a complete directed graph. Axes: N tokens, h heads."""

from typing import Any

import torch
from torch import Tensor

from vitcli.runner.explain.drawings import bars, edges, spotlight
from vitcli.runner.explain.lesson import Drawing, Lesson, LiveTable, error
from vitcli.runner.explain.random_tensors import reach_of_attention, reach_of_convolution
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
    layer, size = subject.layers[-1], subject.num_tokens
    weights = layer.weights[0].mean(0)
    received = weights.sum(0)
    update = layer.weights[0] @ layer.value[0]
    maps = len(subject.layers) * subject.num_heads
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


def explain(subject: Subject) -> Lesson:
    reach = {
        "reach": reach_of_attention(),
        "reach_of_convolution": reach_of_convolution()[0],
    }
    numbers = measure(subject) | reach
    return Lesson(
        title="Graph: attention is a complete directed graph",
        idea=(
            "The tokens are the nodes, and there is an edge from every token to every token,"
            " itself included. The weight of an edge is the attention. In each layer, a node"
            " gathers the values of all nodes along its edges, as in a graph neural network whose"
            " edges are computed for every picture."
        ),
        formula="edge j → i: a_{ij},  Σ_{j} a_{ij} = 1\nnode update: z_{i} = Σ_{j} a_{ij} v_{j}",
        tables=_tables(numbers),
        findings=_findings(subject, numbers),
        tries=[
            ("vitcli attn-map photo.jpg --method rollout", "the edges of all layers, joined"),
            ("vitcli train quickstart -s model.attention=local --dry-run", "a graph of windows"),
        ],
        numbers=numbers,
        drawings=_drawings(subject, numbers),
    )


def _findings(subject: Subject, numbers: dict[str, Any]) -> list[str]:
    return [
        f"The model: {numbers['nodes']} nodes and {numbers['nodes']}² = {numbers['edges']:,} edges"
        f" in each head; {len(subject.layers)} layers x {subject.num_heads} heads ="
        f" {numbers['graphs']} graphs with {numbers['all_edges']:,} edges for one picture.",
        f"The graph is complete: in one layer, {100 * numbers['reach']:.0f} % of the pairs (output"
        f" token, input token) have a gradient. In a 3x3 convolution on 8x8 pixels, it is"
        f" {100 * numbers['reach_of_convolution']:.0f} %.",
        f"Sending a message along every edge and adding the messages up gives A V; the largest"
        f" difference is {error(numbers['update_error'])}.",
        f"In layer {len(subject.layers)}, a token gives away a weight of"
        f" {numbers['out_weight']:.2f} and receives {numbers['mean_received']:.2f} on average, from"
        f" {numbers['least_received']:.2f} to {numbers['most_received']:.2f}"
        f" ({numbers['most_received_by']}). The {numbers['num_tenth']} tokens that receive most get"
        f" {100 * numbers['share_of_tenth']:.0f} % of all attention. A token gives"
        f" {100 * numbers['self_weight']:.1f} % to itself.",
    ]


def _tables(numbers: dict[str, Any]) -> list[LiveTable]:
    return [
        LiveTable(
            caption="The strongest edges between different tokens in the last layer, mean over"
            " heads. The value flows from the key to the query.",
            header=("from (key)", "to (query)", "weight"),
            rows=tuple(
                (edge["from"], edge["to"], f"{edge['weight']:.3f}") for edge in numbers["strongest"]
            ),
            num_texts=2,
        )
    ]


def _drawings(subject: Subject, numbers: dict[str, Any]) -> list[Drawing]:
    received = torch.tensor(numbers["received"])
    triples = [(edge["query"], edge["key"], edge["weight"]) for edge in numbers["strongest"]]
    return [
        Drawing(
            html=edges(subject, triples, "picture with the strongest edges"),
            caption=f"The {len(triples)} strongest edges of the last layer, from key to query.",
        ),
        Drawing(
            html=spotlight(subject, received, -1, "picture, bright where attention arrives"),
            caption="Bright patches receive most attention.",
        ),
        Drawing(
            html=bars(histogram(received), "histogram of received attention"),
            caption="Number of tokens by received attention; the average is 1.",
        ),
    ]


def histogram(values: Tensor, count: int = 6) -> list[tuple[str, float, str]]:
    """Return ``count`` equal bins from 0 to the largest value, as rows of ``bars``."""
    top = values.max().item()
    numbers = torch.histc(values, count, 0, top).int().tolist()
    edges = [top * i / count for i in range(count + 1)]
    return [
        (f"{low:.1f} to {high:.1f}", number, str(number))
        for low, high, number in zip(edges, edges[1:], numbers, strict=False)
    ]
