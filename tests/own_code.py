"""A user's own file for tests, and the end of a process that has loaded it."""

import sys
from typing import Any

import pytest

from tests.cli import commands
from vitcli.core.metric import METRICS
from vitcli.core.spec import DATA_READERS
from vitcli.core.spec.own import FIELDS, PARTS, TEXTS
from vitcli.runner.experiment import own_code
from vitcli.runner.run import folder as run_folder

TABLES: list[Any] = [*FIELDS.values(), DATA_READERS, METRICS]
EVERY = """
import torch
from torch import nn
from vitcli.parts import (Position, attention, augmentation, ffn, metric, norm, optimizer,
                          patch_embed, pool, pos_embed, schedule)

@attention
class Uniform(nn.Module):
    def __init__(self, shape, *, share: float = 1.0):
        super().__init__()
        self.share = share
    def forward(self, q, k, v):
        return self.share * v.mean(2, keepdim=True).expand_as(v)

@ffn
class Gate(nn.Linear):
    def __init__(self, shape, *, hidden_dim, dropout):
        super().__init__(shape.embed_dim, shape.embed_dim)
        assert hidden_dim and dropout is not None
    def forward(self, x):
        return super().forward(x).sigmoid() * x

class Plain(nn.Module):
    def __init__(self, shape):
        super().__init__()

@norm
class Centre(Plain):
    def forward(self, x):
        return x - x.mean(-1, keepdim=True)

@pos_embed
class Rows(Plain):
    def __init__(self, shape):
        super().__init__(shape)
        self.table = nn.Parameter(torch.zeros(1, shape.num_tokens, shape.embed_dim))
    def forward(self):
        return self.table

@pos_embed
class Shift(Position):
    turns_heads = True
    def __init__(self, shape):
        super().__init__()
    def forward(self, heads):
        return heads + 0.1

@patch_embed
class Conv(nn.Conv2d):
    def __init__(self, in_chans, patch_size, embed_dim, *, bias):
        super().__init__(in_chans, embed_dim, patch_size, patch_size, bias=bias)
    def forward(self, images):
        return super().forward(images).flatten(2).mT

@pool
class Largest(Plain):
    def forward(self, tokens):
        return tokens.amax(1)

@schedule
def stairs(progress, *, steps: int = 2):
    return 1 - int(progress * steps) / (steps + 1)

@augmentation(draws=1)
def dim(images, draws, *, strength: float = 0.5):
    return images * (1 - strength * draws[:, :, None, None])

@optimizer(state_copies=0)
class Descent(torch.optim.SGD):
    def __init__(self, params, lr, *, power: float = 1.0):
        super().__init__(params, lr * power)

@metric(unit="%")
def first_class(logits, labels):
    return (logits.argmax(1) == 0).double().mean()
"""


def vitcli(command: str, code: int = 0) -> str:
    """Run a command as a new process would; return what it prints, or says where it fails."""
    as_new_process()
    out, talk = commands.typed(command, code)
    return talk if code else out


@pytest.fixture(autouse=True)
def forget(monkeypatch):
    before = [dict(table) for table in TABLES]
    monkeypatch.setattr(own_code, "state", own_code._State())
    yield
    as_new_process()
    for table, rows in zip(TABLES, before, strict=True):
        table.clear()
        table.update(rows)


def as_new_process() -> None:
    for name in {*own_code.state.modules, *TEXTS}:
        sys.modules.pop(name, None)
    own_code.state = own_code._State()
    PARTS.clear()
    TEXTS.clear()
    for table in TABLES:
        for name in [name for name, row in table.items() if row.source]:
            del table[name]
    run_folder._parsed_before.clear()
