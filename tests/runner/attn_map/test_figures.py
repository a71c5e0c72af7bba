"""Every figure of `attn-map` is legible, and says which layer it shows and why."""

from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from tests.figure_checks import faults
from vitcli.core.inspect.maps import METHODS_BY_HEAD
from vitcli.runner.attn_map.explain import Explanation
from vitcli.runner.attn_map.overlay import draw_figure

LONG = "northern_flying_squirrel_with_acorn_\u00dcbergr\u00f6\u00dfe"
RUN = "runs/a_run_with_a_rather_long_name_of_its_own/train/seed0"


def explanation(method: str, **changes) -> Explanation:
    fields: dict[str, Any] = {"label": LONG, "explained_class": LONG, "probability": 0.5}
    fields |= {"fit": "crop", "picture": np.full((60, 90, 3), 99, np.uint8), "box": (0, 15, 60, 60)}
    fields |= {"layers": (4,), "depth": 4, "heads": (1, 2, 3), "are_heads_averaged": False}
    fields |= {"grid": (8, 8), "num_prefix_tokens": 2, "query": None, "has_cls": True}
    fields |= {"reader": "CLS"}
    fields |= {"layers": (1, 2, 3, 4)} if method in METHODS_BY_HEAD else {}
    fields |= changes
    rows, columns = fields["grid"]
    tokens = rows * columns + fields["num_prefix_tokens"]
    by_head = (len(fields["layers"]), len(fields["heads"]))
    shapes = {"head": (*by_head, rows, columns), "raw": (*by_head, tokens, tokens)}
    maps = np.random.default_rng(0).random(shapes.get(method, (rows, columns))) / tokens
    fields |= {"batch": torch.zeros(1, 3, 8, 8)}
    return Explanation(path="x.png", method=method, maps=maps, **fields)


SHAPES: dict[str, dict[str, Any]] = {
    "tall": {"picture": np.full((300, 20, 3), 99, np.uint8), "box": (100, 0, 20, 20)},
    "one head": {"heads": (1,), "layers": (3,), "query": (2, 2)},
    "many heads": {"heads": tuple(range(1, 13)), "layers": (12,), "depth": 12},
    "large grid": {"grid": (16, 32), "num_prefix_tokens": 0, "has_cls": False, "layers": (3,)},
    "not a classifier": {"label": None, "explained_class": None, "probability": None},
}


CASES = [
    *product(["head"], SHAPES),
    *product(["raw"], ["tall", "many heads", "large grid"]),
    *product(["cls"], ["tall", "many heads", "not a classifier"]),
    ("grad-rollout", "tall"),
]


@pytest.mark.parametrize(("method", "shape"), CASES)
def test_nothing_is_cut_off_or_covered_and_everything_has_a_label(method, shape):
    shown = explanation(method, **SHAPES[shape])
    assert faults(partial(draw_figure, shown, run=RUN)) == []
