"""vitcli: train, ablate and inspect small Vision Transformers.

The names below are imported on first use, so ``import vitcli`` alone does not load torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitcli.api import (
        Classifier,
        Prediction,
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
        load_classifier,
        load_data,
        load_model,
        load_run,
        runs,
        table,
    )
    from vitcli.version import __version__

__all__ = [
    "Classifier",
    "Prediction",
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
    "load_classifier",
    "load_data",
    "load_model",
    "load_run",
    "runs",
    "table",
]


WITHOUT_TORCH = {
    "__version__": "vitcli.version",
    "UserError": "vitcli.runner.errors",
    "Classifier": "vitcli.runner.evaluate.classifier",
    "Prediction": "vitcli.runner.evaluate.classifier",
    "load_classifier": "vitcli.runner.evaluate.load",
}
"""Name -> the module that has it; all others are in ``vitcli.api``, which imports torch."""


def __getattr__(name: str) -> Any:
    if name in __all__:
        module = importlib.import_module(WITHOUT_TORCH.get(name, "vitcli.api"))
        return getattr(module, name)
    raise AttributeError(f"module 'vitcli' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
