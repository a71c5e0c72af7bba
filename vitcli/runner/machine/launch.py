"""Whether torchrun started this process, and as which of how many. No torch."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

NUMBERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
VARIABLES = (*NUMBERS, "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID")
"""What torchrun sets. Other programs set some of them, but not all."""


@dataclass(frozen=True)
class Launch:
    """One process of several that torchrun started; the local numbers are those of a machine."""

    rank: int
    size: int
    local_rank: int
    local_size: int

    @property
    def command(self) -> str:
        """Return the words before ``vitcli`` with which as many processes can be started again."""
        nodes = f"--nnodes {self.size // self.local_size} " if self.size > self.local_size else ""
        return f"torchrun {nodes}--nproc-per-node {self.local_size} -m"


def read_launch(environment: Mapping[str, str] = os.environ) -> Launch | None:
    """Return how torchrun started this process; None if it is the only process."""
    if any(not environment.get(name) for name in VARIABLES):
        return None
    launch = Launch(*(int(environment[name]) for name in NUMBERS))
    return launch if launch.size > 1 else None
