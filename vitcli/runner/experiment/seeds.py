"""Random seeds of several trainings, as files and the command line name them."""

import re
from typing import Annotated

from pydantic import Field

from vitcli.runner.errors import ConfigError

MAX_SEED = 2**31 - 1
Seeds = Annotated[list[Annotated[int, Field(ge=0, le=MAX_SEED)]], Field(min_length=1)]


def parse_seeds(text: str) -> list[int]:
    """Return the seeds in a text: ``"0-4,7"`` becomes ``[0, 1, 2, 3, 4, 7]``."""
    seeds: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})(?:-(\d{1,9}))?\s*", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not 0 <= last - first < 1000:
            raise ConfigError(
                f"--seeds takes numbers and ranges, such as 0-4 or 0,2,5; got {text!r}"
            )
        seeds += range(first, last + 1)
    return seeds
