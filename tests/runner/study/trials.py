"""A small study and trials of it that look trained."""

from pathlib import Path

import numpy as np

from tests.fabricated import make_run
from vitcli.runner.run.folder import RunDir
from vitcli.runner.run.record import read_record
from vitcli.runner.study.definition import Study, load_study
from vitcli.runner.study.plan import plan_study
from vitcli.runner.study.run import save_results
from vitcli.runner.study.saved import SAVED, SavedTrials
from vitcli.runner.study.states import trial_states

STUDY = """
base: quickstart
seeds: [0, 1]
variants:
  full: {}
  no-norm: {model.norm: none}
"""
CHANGES = {"full": {}, "no-norm": {"model.norm": "none"}}
ROOT = Path("runs/mine")
LINES = SAVED / "mine/seed0.jsonl"
TUNED = STUDY + "data: {val_split: 1000}\ntune: {optim.lr: [1.0e-3, 2.0e-3]}\n"


def write_study(text: str = STUDY, name: str = "mine") -> Study:
    Path(f"{name}.yaml").write_text(text)
    return load_study(f"{name}.yaml")


def fabricate(variant: str, seed: int, accuracy: float = 0.5, **options) -> RunDir:
    """Make a trial that looks trained, with 2,000 predictions of the given accuracy."""
    folder = options.pop("folder", ROOT / variant / f"seed{seed}")
    meta = {"threads": 1, "device": "cpu"} | options.pop("meta", {})
    changes = CHANGES[variant] | options.pop("changes", {})
    options |= {"folder": folder, "meta": meta, "changes": changes or None}
    run = make_run(seed, accuracy=accuracy, **options)
    if val := options.get("result", {}).get("val_accuracy"):
        run.set_metrics([record | {"val_accuracy": val} for record in read_record(run).metrics])
    is_wrong = np.arange(2000) >= round(2000 * accuracy)
    logits = np.stack([np.zeros(2000), is_wrong], 1).astype(np.float32)
    np.savez(run.path / "predictions.npz", logits=logits, labels=np.zeros(2000, np.int64))
    return run


def states(
    study: Study, saved: SavedTrials | None = None, *, ignore: tuple[str, ...] = ()
) -> dict[str, str]:
    found = trial_states(study, ROOT, (), saved, ignore=ignore)
    return {name: state.state for name, state in found.items()}


def save_all(study: Study) -> None:
    save_results(plan_study(study, ROOT, ()), SAVED)
