"""``vitcli.table``: the table of a CSV file or a data frame."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from vitcli.api import ResultTable
from vitcli.plugins.table.results_file import Choices, read_text
from vitcli.runner.errors import ConfigError
from vitcli.runner.report.tables import csv_text
from vitcli.runner.text import portable


def table(
    results: Any, on_message: Callable[[str], object], choices: Mapping[str, Any]
) -> ResultTable:
    chosen = Choices.of(**choices)
    is_frame = hasattr(results, "to_csv")
    if not is_frame and not isinstance(results, str | os.PathLike):
        kind = type(results).__name__
        raise ConfigError(f"vitcli.table: {kind}: must be a CSV file or a data frame of pandas")
    what = "frame" if is_frame else repr(portable(str(results)))
    call = f"vitcli.table({', '.join([what, *(f'{k}={v!r}' for k, v in choices.items())])})"
    text = results.to_csv(index=False) if is_frame else csv_text(Path(results))
    document, unused = read_text(text, "frame" if is_frame else str(results), chosen, call)
    if unused:
        on_message(f"not used: {', '.join(unused)}")
    return ResultTable(document, source=None if is_frame else Path(results))
