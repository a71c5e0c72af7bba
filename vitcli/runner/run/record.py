"""meta.json: the experiment, the data and the code of a run."""

import shlex
import sys
import time
from dataclasses import replace
from typing import Any

from vitcli.core.data.source import DataSet
from vitcli.runner.experiment.config import (
    STATISTICS,
    Experiment,
    config_hash,
)
from vitcli.runner.run.folder import RunDir

NO_TEST = {"without_test": True, "num_test": 0}
"""Entries in meta.json of a run that measures validation images only."""


def run_metadata(
    experiment: Experiment,
    data: DataSet,
    numerical_environment: dict[str, Any],
    meta: dict[str, Any],
    command: str | None = None,
) -> dict[str, Any]:
    """Return the content of meta.json.

    A resumed run keeps its entries and gains one entry in ``sessions``.

    Args:
        experiment: The experiment of the run.
        data: The images that were read.
        numerical_environment: Versions, hardware and settings that determine the numbers.
        meta: The previous content; {} for a new run.
        command: The command that started the run; by default that of this process.
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


def named_as_run(experiment: Experiment) -> Experiment:
    """Return an experiment under the name of the run whose config.yaml it is.

    The name is that of the run's experiment; a trial has its variant, too. So a run that is
    trained from the config.yaml of another run is not called ``config``. Experiments from other
    files are returned as they are.
    """
    if experiment.path.name != "config.yaml":
        return experiment
    meta = RunDir(experiment.path.parent).read("meta.json")
    name = "-".join(
        meta[key] for key in ("experiment", "variant") if isinstance(meta.get(key), str)
    )
    if not name or not name.isprintable() or set(name) & set("/\\") or name[0] in ".-~":
        return experiment
    return replace(experiment, name=name, changed=True)


def describe_other_images(recorded_hash: str | None, data: DataSet) -> str | None:
    """Return how the images differ from those of a training; None if they are the same.

    The text completes a sentence such as ``RUN was trained on ...``.

    Args:
        recorded_hash: ``data_hash`` in the run's meta.json; empty or None if it has none.
        data: The images that were read now.
    """
    if not recorded_hash or recorded_hash == data.data_hash:
        return None
    return f"other images (hash {recorded_hash[:12]}, now {data.data_hash[:12]})"
