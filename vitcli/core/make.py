"""Build what the rows of tables name, and optimisers that begin at once."""

from inspect import unwrap
from typing import Any, TypeVar

import torch
from torch.optim import Optimizer

from vitcli.core.spec import TokenSpec
from vitcli.core.spec.rows import Row, load_target

AnyOptimizer = TypeVar("AnyOptimizer", bound=Optimizer)


def make(row: Row, *args: Any, **options: Any) -> Any:
    """Call the class or function of a row with the arguments and return the result."""
    return load_target(row.build)(*args, **options)


def make_part(spec: TokenSpec, slot: str, *args: Any) -> Any:
    """Return what the row of a slot builds from the arguments and its options in the spec.

    An option that the family of the spec does not have keeps the default of the layer.
    """
    row = spec.row_of(slot)
    given = {key: field for key, field in row.options.items() if hasattr(spec, field)}
    return make(row, *args, **{key: getattr(spec, field) for key, field in given.items()})


def without_compiler(cls: type[AnyOptimizer]) -> type[AnyOptimizer]:
    """Return an optimiser class that computes the same and does not import ``torch._dynamo``.

    torch's own classes import the compiler even if nothing is compiled. The import takes more than
    a second, which would delay the first step, and more than 100 MB.
    """
    names = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
    methods = {name: unwrap(getattr(cls, name)) for name in names}
    step = torch.no_grad()(unwrap(cls.step))
    made: type[AnyOptimizer] = type(cls.__name__, (cls,), methods | {"step": step})
    return made
