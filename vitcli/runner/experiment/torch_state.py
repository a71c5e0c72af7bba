"""Settings and functions of torch that hold for the whole process, which own code must not change.

A file that replaces ``cross_entropy`` or the default dtype changes built-in parts as well, so the
numbers of other variants would no longer be those of vitcli.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from vitcli.runner.errors import OwnCodeError

SETTINGS = (
    *("default_dtype", "default_device", "num_threads"),
    *("float32_matmul_precision", "deterministic_debug_mode"),
)
"""``torch.get_NAME`` returns the setting, ``torch.set_NAME`` sets it."""
CUDNN = ("enabled", "benchmark", "benchmark_limit", "deterministic", "allow_tf32")
"""In the order of the arguments of ``set_flags``."""


def _settings() -> dict[str, tuple[Any, Callable[[Any], Any]]]:
    """Return what sets a setting -> the setting, and the function that sets it."""
    import torch

    names = {f"torch.set_{name}": name for name in SETTINGS}
    cudnn = torch.backends.cudnn
    return {
        **{k: (getattr(torch, f"get_{v}")(), getattr(torch, f"set_{v}")) for k, v in names.items()},
        "torch.set_grad_enabled": (torch.is_grad_enabled(), torch.set_grad_enabled),
        "torch.backends.cudnn": (
            tuple(getattr(cudnn, name) for name in CUDNN),
            lambda flags: cudnn.set_flags(*flags),
        ),
    }


def _functions() -> dict[tuple[Any, str], Any]:
    """Return the module or class of torch, and the name of a function in it -> the function."""
    import torch

    nn, optim = torch.nn, torch.optim
    modules = (torch, nn.functional, nn.init, torch.linalg)
    classes = (torch.Tensor, nn.Module, nn.Linear, nn.Conv2d, nn.LayerNorm, optim.AdamW, optim.SGD)
    return {
        (place, name): value
        for place in (*modules, *classes)
        for name, value in vars(place).items()
        if callable(value)
    }


@contextmanager
def unchanged(where: str) -> Iterator[None]:
    """Undo changes of torch by own code in the block, and refuse them."""
    settings, functions = _settings(), _functions()
    try:
        yield
    finally:
        changed = []
        for name, (value, change) in _settings().items():
            if value != (before := settings[name][0]):
                # The device cpu is the default; naming it would make each operation slower.
                change(None if str(before) == "cpu" else before)
                changed.append(name)
        now = _functions()
        for (place, name), value in functions.items():
            new = now.get((place, name))
            is_new_name = getattr(new, "__name__", name) != name
            is_of_torch = str(getattr(new, "__module__", None)).partition(".")[0] == "torch"
            if new is not value and (is_new_name or not is_of_torch):
                setattr(place, name, value)
                changed.append(f"{getattr(place, '__qualname__', place.__name__)}.{name}")
    if changed:
        raise OwnCodeError(
            f"{where}: changes torch for the whole process ({', '.join(changed[:3])}), and with it"
            " the built-in parts; leave that out, or do it inside your part"
        )
