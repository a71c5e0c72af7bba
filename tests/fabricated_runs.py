"""Folders of runs and studies made without a training, for the page of runs and for ``watch``."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.fabricated import make_run, record
from vitcli.runner.files import commit_json
from vitcli.runner.run.folder import RUNS, RunDir, Status

STUDY = RUNS / "parts"
VARIANTS: dict[str, dict[str, Any]] = {"full": {}, "no-ffn": {"model.ffn": "none"}}


def make_study_folder(
    states: Mapping[str, str], *, saved: tuple[str, ...] = (), epochs: int = 6
) -> Path:
    """Make the study ``parts`` from trial folder -> state; a missing trial has no folder.

    The accuracy of ``full`` rises to 0.6 and that of ``no-ffn`` to 0.5, plus 0.01 per seed.
    """
    for folder, state in states.items():
        if state != "missing":
            make_trial(folder, state)  # type: ignore[arg-type]
    trials = {
        folder: {"variant": folder.partition("/")[0], "config": {"train": {"epochs": epochs}}}
        for folder in states
    }
    plan = {"study": "parts", "command": "vitcli ablate parts.yaml", "trials": trials}
    commit_json(STUDY / "plan.json", plan | {"saved": list(saved)})
    return STUDY


def make_trial(folder: str, state: Status) -> RunDir:
    variant, _, seed = folder.partition("/seed")
    last = {"full": 0.6, "no-ffn": 0.5}[variant] + 0.01 * int(seed)
    facts: dict[str, Any] = {"experiment": "parts", "variant": variant, "num_train": 2000}
    facts["started"] = "2026-11-22T10:00:00Z"
    run = make_run(
        int(seed),
        folder=STUDY / folder,
        state=state,
        accuracy=last,
        changes=VARIANTS[variant] | {"train.epochs": 6},
        meta=facts,
    )
    done = 6 if state == "finished" else 3
    run.set_metrics([record(epoch, last - 0.05 * (6 - epoch)) for epoch in range(1, done + 1)])
    return run
