"""Topic ``average``: attention as a weighted average. Axes: N tokens, d width of a head."""

import torch

from vitcli.core.inspect.statistics import attention_entropy
from vitcli.runner.explain.drawings import bars, heat, spotlight
from vitcli.runner.explain.graph import passed_messages
from vitcli.runner.explain.lesson import Shown
from vitcli.runner.explain.subject import Subject

EXAMPLE = (0.2, 0.3, 0.5)
"""The row of weights in the lecture notes."""
NUM_LARGEST = 5


@torch.no_grad()
def explain(subject: Subject) -> Shown:
    layer, query = subject.layers[-1], subject.query
    name, has_place = subject.token_name(query), subject.place(query) is not None
    rows = layer.weights[:, :, query : query + 1]
    head = int(attention_entropy(rows)[0].argmin())
    row, output = layer.weights[0, head, query], layer.weights @ layer.value
    summed = passed_messages(layer)[head, query]
    shares, tokens = row.topk(min(NUM_LARGEST, len(row)))
    largest = [
        {"token": token, "name": subject.token_name(token), "weight": weight}
        for token, weight in zip(tokens.tolist(), shares.tolist(), strict=True)
    ]
    rest = (row.sum() - shares.sum()).item()
    lines = [
        (each["name"].replace("column", "col."), each["weight"], f"{each['weight']:.3f}")
        for each in largest
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
            "num_others": len(row) - len(largest),
            "framed": " The frame is the token itself." if has_place else "",
        },
        drawings=[spotlight(subject, row, query), bars(lines), heat(row[None], "row")],
    )
