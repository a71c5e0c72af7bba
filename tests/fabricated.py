"""Folders of runs and studies made without a training, for commands that only read them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitcli.runner.experiment.config import config_hash, load_experiment
from vitcli.runner.files import commit_json
from vitcli.runner.run.folder import RUNS, RunDir, Status

STUDY = RUNS / "parts"
VARIANTS: dict[str, dict[str, Any]] = {"full": {}, "no-ffn": {"model.ffn": "none"}}


def make_run(
    seed: int = 0,
    *,
    experiment: str = "quickstart",
    folder: Path | None = None,
    state: Status = "finished",
    accuracy: float = 0.5,
    meta: dict[str, Any] | None = None,
    result: dict[str, Any] | None = None,
    changes: dict[str, Any] | None = None,
) -> RunDir:
    """Make a run that looks trained, for 6 epochs if it is finished, else for 3."""
    asked = load_experiment(experiment, changes).spec.replace(seed=seed)
    facts_of_data = {
        "class_names": ("cat", "dog"),
        "mean": asked.data.mean or (0.5, 0.5, 0.5),
        "std": asked.data.std or (0.2, 0.2, 0.2),
    }
    model = asked.model.replace(img_size=(32, 32), in_chans=3, num_classes=2)
    spec = asked.replace(model=model, data=asked.data.replace(**facts_of_data))
    run = RunDir(folder or RUNS / experiment / "train" / f"seed{seed}")
    with run.lock():
        run.create(spec)
    done = spec.train.epochs if state == "finished" else 3
    run.set_metrics([record(epoch, accuracy) for epoch in range(1, done + 1)])
    step = run.checkpoints / str(100 * done)
    step.mkdir(exist_ok=True)
    (step / "manifest.json").write_text("{}")
    facts = {
        "experiment": experiment,
        "seed": seed,
        "config_hash": config_hash(asked),
        "data_hash": "d" * 64,
        "commit": "c" * 40,
        "dirty": False,
        "hardware": "AMD EPYC, 2 threads",
        "torch": "2.15.0",
        "started": "2026-11-20T20:29:30Z",
        "precision": "fp32",
    }
    commit_json(run.path / "meta.json", facts | (meta or {}))
    if state == "finished":
        measured = {
            "test_accuracy": accuracy,
            "test_loss": 1.5,
            "parameters": 140618,
            "epochs": done,
            "train_seconds": 200.5,
            "images_per_second": 1234.5,
            "precision": "fp32",
            "num_test": 2000,
        }
        commit_json(run.path / "result.json", measured | (result or {}))
    run.set_status(state, 100 * done)
    return run


def record(epoch: int, accuracy: float) -> dict[str, Any]:
    return {
        "step": 100 * epoch,
        "epoch": epoch,
        "lr": 1e-3,
        "train_loss": 1 / epoch,
        "train_accuracy": accuracy,
        "grad_norm": None,
        "images_per_second": 1000.0,
        "test_accuracy": accuracy,
    }


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
