"""Topic ``average``: attention as a weighted average. Axes: N tokens, d width of a head."""

from typing import Any

import torch
from torch import Tensor

from vitcli.core.inspect.statistics import attention_entropy
from vitcli.runner.explain.drawings import bars, row_strip, spotlight
from vitcli.runner.explain.lesson import Drawing, Lesson, LiveTable, error
from vitcli.runner.explain.subject import Layer, Subject

EXAMPLE = (0.2, 0.3, 0.5)
"""The row of weights in the lecture notes."""
NUM_LARGEST = 5


def example_average() -> list[float]:
    """Return the example's weights times the unit vectors e1, e2 and e3."""
    weights, values = torch.tensor([EXAMPLE]), torch.eye(len(EXAMPLE))
    average: list[float] = (weights @ values)[0].tolist()
    return average


def sharpest_head(layer: Layer, query: int) -> int:
    """Return the head whose row for this token has the smallest entropy, from 0."""
    rows = layer.weights[:, :, query : query + 1]
    return int(attention_entropy(rows)[0].argmin())


def one_row(layer: Layer, head: int, query: int) -> tuple[Tensor, float]:
    """Return a row of weights (N,), and how far the sum of weighted values is from the output.

    The sum is computed token by token, and compared with the head's matrix product.
    """
    row, values = layer.weights[0, head, query], layer.value[0, head]
    total = torch.zeros_like(values[0])
    for weight, value in zip(row, values, strict=True):
        total = total + weight * value
    output = (layer.weights @ layer.value)[0, head, query]
    return row, (total - output).abs().max().item()


@torch.no_grad()
def explain(subject: Subject) -> Lesson:
    layer, query = subject.layers[-1], subject.query
    head = sharpest_head(layer, query)
    row, difference = one_row(layer, head, query)
    shares, tokens = row.topk(min(NUM_LARGEST, len(row)))
    largest = [
        {"token": token, "name": subject.token_name(token), "weight": weight}
        for token, weight in zip(tokens.tolist(), shares.tolist(), strict=True)
    ]
    numbers = {
        "example": example_average(),
        "layer": len(subject.layers),
        "head": head + 1,
        "query": subject.token_name(query),
        "largest": largest,
        "rest": (row.sum() - shares.sum()).item(),
        "difference": difference,
    }
    return Lesson(
        title="Average: the attention matrix is a weighted average",
        idea=(
            "A row of the attention matrix is a recipe: it says how much of each value goes into"
            " the output of one token. The weights are not negative and sum to 1, so the output"
            " lies among the values."
        ),
        formula=(
            "[0.2  0.3  0.5] · (e_{1}, e_{2}, e_{3}) = 0.2 e_{1} + 0.3 e_{2} + 0.5 e_{3}\n"
            "out_{i} = a_{i1} v_{1} + a_{i2} v_{2} + … + a_{iN} v_{N}"
        ),
        tables=[_table(numbers)],
        findings=_findings(subject, numbers),
        tries=[
            ("vitcli attn-map photo.jpg --query 0.5,0.5", "where one patch looks"),
            ("vitcli attn-map photo.jpg --format html", "every row of every head, by mouse"),
        ],
        numbers=numbers,
        drawings=_drawings(subject, row, numbers),
    )


def _findings(subject: Subject, numbers: dict[str, Any]) -> list[str]:
    vector = ", ".join(f"{value:.1f}" for value in numbers["example"])
    query = numbers["query"]
    token = f"the token in {query}," if query.startswith("row") else query
    return [
        "The example of the lecture notes: with e1 = (1, 0, 0), e2 = (0, 1, 0), e3 = (0, 0, 1), the"
        f" row [0.2 0.3 0.5] gives ({vector}).",
        f"The row of {token} in layer {numbers['layer']}. Head {numbers['head']} is shown because"
        f" its weights are the most concentrated. The {len(numbers['largest'])} largest"
        f" weights sum to {1 - numbers['rest']:.3f} and the other"
        f" {subject.num_tokens - len(numbers['largest'])} to {numbers['rest']:.3f}.",
        f"Adding up all {subject.num_tokens} weighted values one by one gives the head's output;"
        f" the largest difference is {error(numbers['difference'])}.",
    ]


def _table(numbers: dict[str, Any]) -> LiveTable:
    return LiveTable(
        caption=f"The largest weights of {numbers['query']} (layer {numbers['layer']}, head"
        f" {numbers['head']}); rows and columns of patches count from 1.",
        header=("looks at", "weight"),
        rows=(
            *((each["name"], f"{each['weight']:.3f}") for each in numbers["largest"]),
            ("all others", f"{numbers['rest']:.3f}"),
        ),
    )


def _drawings(subject: Subject, row: Tensor, numbers: dict[str, Any]) -> list[Drawing]:
    query = subject.query
    framed = "" if subject.place(query) is None else " The frame is the token itself."
    places = [
        (each["name"], each["weight"], f"{each['weight']:.3f}") for each in numbers["largest"]
    ]
    names = [(name.replace("column", "col."), value, text) for name, value, text in places]
    return [
        Drawing(
            html=spotlight(subject, row, query, "picture, bright where the token looks"),
            caption=f"Bright patches have a large weight.{framed}",
        ),
        Drawing(html=bars(names, "the five largest weights"), caption="The largest weights."),
        Drawing(
            html=row_strip(row, "all weights of the row"),
            caption=f"The whole row of {len(row)} weights, in reading order of the patches.",
        ),
    ]
