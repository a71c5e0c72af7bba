"""meta.json: what was run, on which data, from which code."""

import shlex
import sys
import time
from typing import Any

from vitcli.core.data.source import DataSet
from vitcli.runner.experiment.config import (
    STATISTICS,
    Experiment,
    config_hash,
)


def run_metadata(
    experiment: Experiment,
    data: DataSet,
    numerical_environment: dict[str, Any],
    meta: dict[str, Any],
    command: str | None = None,
) -> dict[str, Any]:
    """meta.json: what was run, on what, from which code.

    A run that is continued keeps what it was, and gains a line in ``sessions``.
    """
    session = {
        "command": command or shlex.join(["vitcli", *sys.argv[1:]]),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        **numerical_environment,
    }
    if "experiment" in meta:
        return meta | {"sessions": [*meta.get("sessions", []), session]}
    spec = experiment.spec
    return {
        "experiment": experiment.name,
        "variant": experiment.variant,
        "config_hash": config_hash(spec),
        "typed": [name for name in STATISTICS if getattr(spec.data, name) is not None],
        "data": data.name,
        "data_hash": data.data_hash,
        "num_train": len(data.train),
        "num_val": len(data.val) if data.val else 0,
        "num_test": len(data.test),
        "seed": spec.seed,
        **session,
        "sessions": [],
        **meta,
    }
