"""An attention and an optimiser that the package does not have, and how they are added.

``add_rows`` is all that it takes. A worker of a study is a process of its own, which reaches the
rows as a plug-in would: a ``sitecustomize.py`` on its path adds them before anything else is run.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from vitcli.core.nn.attention import TokenShape
from vitcli.core.randomness import Draws
from vitcli.core.spec import OPTIMIZERS, OptimSpec
from vitcli.core.spec.metrics import Metric
from vitcli.core.spec.optim import OptimizerRow
from vitcli.core.spec.slots import ATTENTIONS, AttentionRow
from vitcli.core.train.optim import Named, param_groups


class KeyOnly(nn.Module):
    """Every query gives a key the same weight, softmax(k g) with g learned: O(N)."""

    def __init__(self, shape: TokenShape) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(shape.num_heads, shape.head_dim, 1))

    def init_weights(self, draws: Draws) -> None:
        nn.init.normal_(self.gate, generator=draws("gate"))

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        mean = self._shares(key).mT @ value  # (B, h, 1, d)
        return mean.expand(-1, -1, query.shape[2], -1)

    def weights(self, query: Tensor, key: Tensor) -> Tensor:
        return self._shares(key).mT.expand(-1, -1, query.shape[2], -1)

    def _shares(self, key: Tensor) -> Tensor:
        return (key @ self.gate.to(key.dtype)).softmax(dim=-2)  # (B, h, N, 1)


class SignMomentum(Optimizer):
    """Steps by the sign of an average of the gradients."""

    def __init__(self, groups: list[dict[str, Any]], momentum: float) -> None:
        super().__init__(groups, {"momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                average = self.state[parameter].setdefault("average", torch.zeros_like(parameter))
                average.lerp_(parameter.grad, 1 - group["momentum"])
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.sub_(average.sign(), alpha=group["lr"])


def sign_momentum(named: Named, spec: OptimSpec) -> list[Optimizer]:
    return [SignMomentum(param_groups(named, spec, spec.lr), spec.momentum)]


def first_class(logits: Tensor, labels: Tensor) -> float:
    return (logits.argmax(1) == 0).double().mean().item()


METRIC = Metric(name="first_class", label="first class", scale=100, unit="%", of_logits=first_class)
ATTENTION = AttentionRow(
    about="one weight for each key, whatever the query",
    build=KeyOnly,
    time="N",
    memory="N",
)
OPTIMIZER = OptimizerRow(
    about="the sign of an average of the gradients", build=sign_momentum, state_copies=1
)


def add_rows() -> None:
    ATTENTIONS["key_only"] = ATTENTION
    OPTIMIZERS["sign"] = OPTIMIZER


def write_plugin(folder: Path, module: str = "tests.new_rows") -> None:
    """Make every Python process that has the folder on its path add the rows of a module."""
    folder.mkdir()
    text = f"from {module} import add_rows\n\nadd_rows()\n"
    (folder / "sitecustomize.py").write_text(text)
