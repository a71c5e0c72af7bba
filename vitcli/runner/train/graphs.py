"""Whether the steps of a training are CUDA graphs."""

from collections.abc import Callable

import torch

from vitcli.core.spec import ExperimentSpec
from vitcli.runner.errors import ConfigError


def use_graphs(
    spec: ExperimentSpec,
    device: torch.device,
    on_message: Callable[[str], None],
    ranks: int = 1,
) -> bool:
    """Return whether each step is replayed as one CUDA graph, and say why if it cannot be.

    Raises:
        ConfigError: The experiment asks for graphs, and the device is not CUDA, or there are
            several ranks.
    """
    if not spec.train.replays_on(device.type):
        return False
    if device.type != "cuda":
        raise ConfigError(
            f"train.graphs: CUDA graphs need a CUDA device, not {device.type}; remove the field"
        )
    if ranks > 1 and spec.train.graphs:
        raise ConfigError("train.graphs: CUDA graphs need a single process; remove the field")
    if ranks > 1:
        on_message("CUDA graphs need a single process, training without graphs")
        return False
    if spec.train.grad_checkpointing and spec.model.has_random_blocks:
        on_message("a CUDA graph cannot recompute dropout, training without graphs")
        return False
    return True
