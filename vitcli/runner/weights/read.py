"""The tensors of a weights file, which may be hostile."""

import argparse
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from vitcli.runner.errors import InputError
from vitcli.runner.text import one_line

AVERAGED = re.compile(r"(^|[._])(ema|teacher)([._]|$)")
"""The names of averaged weights: an exponential moving average, or the teacher of a student."""
WEIGHT_KEYS = (
    *("state_dict", "model_state_dict", "model", "net", "weights"),
    *("model_state", "params", "state", "student"),
)
"""Keys under which training programs save weights that are not averaged."""
MAX_DEPTH = 4
SAVE = "torch.save(model.state_dict(), 'weights.pt')"
"""What to type in Python to save the weights of a model alone."""


def read_tensors(file: Path) -> dict[str, Tensor]:
    """Return the tensors in a file under their names; of a checkpoint, the averaged weights."""
    if not file.is_file():
        raise InputError(f"{file}: not a file")
    try:
        if file.suffix == ".safetensors":
            saved: Any = safetensors.torch.load_file(file)
        else:
            holders = torch.serialization.safe_globals([argparse.Namespace])  # of options
            with holders, warnings.catch_warnings(action="ignore"):
                saved = torch.load(file, map_location="cpu", weights_only=True)
        tensors = find_tensors(saved)
    except Exception as error:  # a damaged file raises errors of every type
        kind = type(error).__name__
        reason = one_line(str(error).partition("\n")[0] or kind, 200)
        if kind == "UnpicklingError":  # torch's text advises to read it without restriction
            reason = f"it holds no weights, or more than weights; save them: {SAVE}"
        raise InputError(f"{file}: cannot be read as weights: {reason}") from error
    if not tensors:
        raise InputError(f"{file}: holds no dict of tensors; save the weights: {SAVE}")
    if any(tensor.layout != torch.strided or tensor.is_meta for tensor in tensors.values()):
        raise InputError(f"{file}: holds tensors that are not dense; save them dense")
    return tensors


def find_tensors(saved: Any, depth: int = 0) -> dict[str, Tensor]:
    """Return the first mapping of names to tensors in an object, averaged weights before others."""
    if depth == MAX_DEPTH or not isinstance(saved, Mapping):
        return {}
    if all(isinstance(value, Tensor) for value in saved.values()):
        return {str(name): tensor for name, tensor in saved.items()}
    averaged = [key for key in saved if AVERAGED.search(str(key))]
    inside = (find_tensors(saved.get(key), depth + 1) for key in (*averaged, *WEIGHT_KEYS))
    return next(filter(None, inside), {})
