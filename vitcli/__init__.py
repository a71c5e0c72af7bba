"""vitcli: train, ablate and inspect small Vision Transformers.

The names below are imported on first use, so ``import vitcli`` alone does not load torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitcli.api import (
        Predictions,
        ResultTable,
        RunRecord,
        Runs,
        UserError,
        ablate,
        attention_maps,
        build_model,
        data_set,
        decide,
        fit,
        load_data,
        load_model,
        load_run,
        runs,
        table,
    )
    from vitcli.version import __version__

__all__ = [
    "Predictions",
    "ResultTable",
    "RunRecord",
    "Runs",
    "UserError",
    "__version__",
    "ablate",
    "attention_maps",
    "build_model",
    "data_set",
    "decide",
    "fit",
    "load_data",
    "load_model",
    "load_run",
    "runs",
    "table",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        module = "vitcli.version" if name == "__version__" else "vitcli.api"
        return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module 'vitcli' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
