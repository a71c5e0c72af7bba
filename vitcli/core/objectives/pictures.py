"""What a task shows, as plain data. The runner draws it. Axes: R rows, L columns, H W pixels."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Images in rows and columns."""

    title: str
    caption: str
    columns: tuple[str, ...]
    """Names of the L columns."""
    cells: Tensor
    """Pixels (R, L, 3, H, W) uint8."""
    row_names: tuple[str, ...] = ()
    """Names of the R rows; empty if the rows have none."""
