"""Settings and functions of torch that hold for the whole process, which own code must not change.

A file that replaces ``cross_entropy`` or the default dtype changes built-in parts as well, so the
numbers of other variants would no longer be those of vitcli.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from vitcli.runner.errors import OwnCodeError


def _settings() -> dict[str, tuple[Any, Callable[[Any], Any]]]:
    """Return the function that sets a setting -> the setting, and that function."""
    import torch

    return {
        "torch.set_default_dtype": (torch.get_default_dtype(), torch.set_default_dtype),
        "torch.set_default_device": (
            torch.get_default_device(),
            lambda device: torch.set_default_device(None if device.type == "cpu" else device),
        ),
        "torch.set_grad_enabled": (torch.is_grad_enabled(), torch.set_grad_enabled),
        "torch.set_num_threads": (torch.get_num_threads(), torch.set_num_threads),
        "torch.set_float32_matmul_precision": (
            torch.get_float32_matmul_precision(),
            torch.set_float32_matmul_precision,
        ),
        "torch.use_deterministic_algorithms": (
            torch.get_deterministic_debug_mode(),
            torch.set_deterministic_debug_mode,
        ),
        "torch.autograd.set_detect_anomaly": (
            torch.is_anomaly_enabled(),
            torch.autograd.set_detect_anomaly,
        ),
        "torch.backends.cudnn": (
            tuple(getattr(torch.backends.cudnn, name) for name in CUDNN),
            lambda values: torch.backends.cudnn.set_flags(*values),
        ),
    }


CUDNN = ("enabled", "benchmark", "benchmark_limit", "deterministic", "allow_tf32")
"""In the order of the arguments of ``set_flags``."""


def _functions() -> dict[tuple[Any, str], Any]:
    """Return the module or class of torch, and the name of a function in it -> the function."""
    import torch

    nn = torch.nn
    modules = (torch, nn, nn.functional, nn.init, torch.random, torch.linalg, torch.optim)
    values = [value for module in modules for value in vars(module).values()]
    classes = {value for value in values if isinstance(value, type) and _is_of_torch(value)}
    return {
        (place, name): value
        for place in (*modules, *classes)
        for name, value in vars(place).items()
        if callable(value)
    }


def _is_of_torch(value: Any) -> bool:
    return str(getattr(value, "__module__", None)).partition(".")[0] == "torch"


@contextmanager
def unchanged(where: str) -> Iterator[None]:
    """Undo changes of torch by own code in the block, and refuse them."""
    settings, functions = _settings(), _functions()
    try:
        yield
    finally:
        changed = []
        for name, (value, _) in _settings().items():
            if value != settings[name][0]:
                settings[name][1](settings[name][0])
                changed.append(name)
        now = _functions()
        for (place, name), value in functions.items():
            new = now.get((place, name))
            is_new_name = getattr(new, "__name__", name) != name
            if new is not value and (is_new_name or not _is_of_torch(new)):
                setattr(place, name, value)
                changed.append(f"{getattr(place, '__qualname__', place.__name__)}.{name}")
    if changed:
        raise OwnCodeError(
            f"{where}: changes torch for the whole process ({', '.join(changed[:3])}), and with it"
            " the built-in parts; leave that out, or do it inside your part"
        )
