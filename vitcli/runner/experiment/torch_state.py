"""Settings and functions of torch that hold for the whole process, which own code must not change.

A file that replaces ``cross_entropy`` or the default dtype changes built-in parts as well, so the
numbers of other variants would no longer be those of vitcli.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vitcli.runner.errors import OwnCodeError

SETTINGS = (
    *("default_dtype", "default_device", "num_threads"),
    *("float32_matmul_precision", "deterministic_debug_mode"),
)
"""``torch.get_NAME`` returns the setting, ``torch.set_NAME`` sets it."""
CUDNN = ("enabled", "benchmark", "benchmark_limit", "deterministic", "allow_tf32")
"""In the order of the arguments of ``set_flags``."""

INHERITED = ("__init__", "forward", "step")
"""Methods that many classes of torch inherit, so that a change adds them to the class."""


def _settings() -> dict[str, tuple[Any, Callable[[Any], Any]]]:
    """Return what sets a setting -> the setting, and the function that sets it."""
    import torch

    names = {f"torch.set_{name}": name for name in SETTINGS}
    cudnn = torch.backends.cudnn
    return {
        **{k: (getattr(torch, f"get_{v}")(), getattr(torch, f"set_{v}")) for k, v in names.items()},
        "torch.set_grad_enabled": (torch.is_grad_enabled(), torch.set_grad_enabled),
        "torch.autograd.set_detect_anomaly": (
            torch.is_anomaly_enabled(),
            torch.autograd.set_detect_anomaly,
        ),
        "torch.backends.cudnn": (
            tuple(getattr(cudnn, name) for name in CUDNN),
            lambda flags: cudnn.set_flags(*flags),
        ),
    }


def _functions() -> dict[tuple[Any, str], Any]:
    """Return the module or class of torch, and the name of a function in it -> what is there.

    That is the function as it is called, and what the place itself holds (None if inherited).
    """
    import torch

    nn, optim = torch.nn, torch.optim
    modules = (torch, nn, nn.functional, nn.init, optim, torch.linalg)
    classes = [it for place in (nn, optim) for it in vars(place).values() if isinstance(it, type)]
    classes.sort(key=lambda it: len(it.__mro__))  # what it inherits is undone in its base
    names = {place: (*vars(place), *INHERITED) for place in (*modules, *classes)}
    names[torch.Tensor] = (*vars(torch._C.TensorBase), *vars(torch.Tensor))
    return {
        (place, name): (value, vars(place).get(name))
        for place in names
        for name in names[place]
        if callable(value := getattr(place, name, None))
    }


def _is_of_torch(value: Any) -> bool:
    return str(getattr(value, "__module__", None)).partition(".")[0] == "torch"


class _AfterTorch(MetaPathFinder):
    """Calls a function as soon as torch is imported."""

    def __init__(self, then: Callable[[], Any]) -> None:
        self.then = then

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec and spec.loader:
            execute = spec.loader.exec_module
            spec.loader.exec_module = lambda module: (execute(module), self.then())  # type: ignore
        return spec


@contextmanager
def unchanged(where: str) -> Iterator[Callable[[], None]]:
    """Undo and refuse what own code in the block changes: torch, and the working folder.

    It does not import torch. It yields a function that looks at once, not only at the end.
    """
    here = Path.cwd()
    before: list[tuple[dict[str, Any], dict[Any, Any]]] = []

    def check() -> None:
        changed = _undo(*before[0]) if before else []
        is_here = False
        with suppress(OSError):  # of a folder that is gone
            is_here = Path.cwd() == here
        if not is_here:
            os.chdir(here)
        if changed:  # whatever else failed may follow from this
            raise OwnCodeError(
                f"{where}: changes torch for the whole process ({', '.join(changed[:3])}), and with"
                " it the built-in parts; leave that out, or do it inside your part"
            )
        if not is_here:
            raise OwnCodeError(
                f"{where}: changes the working folder (os.chdir), in which a run would then be"
                " written; leave that out"
            )

    finder = _AfterTorch(lambda: before.append((_settings(), _functions())))
    if "torch" in sys.modules:
        finder.then()
    else:
        sys.meta_path.insert(0, finder)
    try:
        yield check
    finally:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)
        check()


def _undo(settings: dict[str, Any], functions: dict[Any, Any]) -> list[str]:
    """Restore settings and functions of torch; return the names of those that had changed."""
    changed = []
    for name, (value, change) in _settings().items():
        if value != (before := settings[name][0]):
            # The device cpu is the default; naming it would make each operation slower.
            change(None if str(before) == "cpu" else before)
            changed.append(name)
    for (place, name), (value, held) in functions.items():
        new = getattr(place, name, None)
        is_new_name = getattr(new, "__name__", name) != name
        if new != value and (is_new_name or not _is_of_torch(new)):
            if held is None and name in vars(place):
                delattr(place, name)
            else:
                setattr(place, name, held or value)
            changed.append(f"{getattr(place, '__qualname__', place.__name__)}.{name}")
    return changed
