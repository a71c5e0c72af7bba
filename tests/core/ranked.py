"""Small trainings on gloo ranks: ``python -m tests.core.ranked RANK SIZE FOLDER CASE ...``.

One pair of processes trains all cases, because starting a process takes longer than a case.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.core.specs import REQUIRED
from tests.core.trainings import HALF, SIZES, data_set, experiment
from vitcli.core.exchange import LostRankError
from vitcli.core.objectives.objective import task_class
from vitcli.core.ranks import ALONE, GroupRanks, Ranks
from vitcli.core.spec import ExperimentSpec
from vitcli.core.train.state import TrainState

Changes = dict[str, dict[str, Any]]
SMALL: dict[str, dict[str, Any]] = {
    "classify": {},
    "mae": {},
    "ssat": {},
    "dino": {"num_prototypes": 16, "hidden_dim": 12, "bottleneck_dim": 8, "local_size": 8},
    "lejepa": {"proj_dim": 6, "hidden_dim": 12, "num_slices": 8, "local_size": 8},
    "clip": {"text_dim": 16, "text_depth": 1, "joint_dim": 8},
    "fusion": {"sound_patch_size": 16, "fusion": "late"},
}
"""Task -> fields that make it small."""
DROPS = {"drop_path": 0.2, "proj_drop": 0.2, "attn_drop": 0.2, "pos_drop": 0.1}
MIXES = {"mixup": 0.4, "cutmix": 1.0, "crop_padding": 1, "flip": "random", "erasing": 0.3}


def of_task(name: str, task: dict[str, Any] | None = None, **sections: dict[str, Any]) -> Changes:
    return {"task": {"name": name} | SMALL[name] | (task or {}), **sections}


CASES: dict[str, Changes] = {
    **{name: of_task(name) for name in SMALL},
    "mixing": {"augment": MIXES},
    "policy": {"augment": {"policy": "rand_augment"}},
    "mixing in parts": {"augment": MIXES, "train": {"accumulate": 2}},
    "clip in parts": of_task("clip", train={"accumulate": 2}),
    "dropout": {"model": DROPS},
    "dropout in parts": {"model": DROPS, "train": {"accumulate": 2}},
    "dropout recomputed": {"model": DROPS, "train": {"grad_checkpointing": True}},
    "dropout of lejepa": of_task("lejepa", model=DROPS | {"pool": "mean"}),
    "dropout of swin": {"model": {"family": "swin"} | DROPS},
    "batch norm": {"model": {"norm": "batch_norm"}},
    "batch norm of sgd": {"model": {"norm": "batch_norm"}, "optim": {"name": "sgd"}},
    "batch norm recomputed": {
        "model": {"norm": "batch_norm"},
        "train": {"grad_checkpointing": True},
    },
    "batch norm of dino": of_task("dino", {"head_norm": "batch"}),
    "early": of_task("fusion", {"fusion": "early", "modality_dropout": 0.3}),
    "cross": of_task(
        "fusion", {"fusion": "cross", "modality_dropout": 0.3, "unimodal": 0.5, "contrast": 0.5}
    ),
    "late": of_task(
        "fusion",
        {"modality_dropout": 0.3, "unimodal": 0.5, "contrast": 0.5},
        augment={"mixup": 0.4},
    ),
    **{f"family {name}": {"model": {"family": name}} for name in ("swin", "coatnet", "pit")},
    "muon": {"optim": {"name": "muon"}},
    "sgd": {"optim": {"name": "sgd"}},
    "average": {"train": {"ema_decay": 0.9}},
}


def spec_of(changes: Changes) -> ExperimentSpec:
    model = dict(changes.get("model", {}))
    family = model.get("family", "vit")
    sizes = SIZES if family == "vit" else {k: SIZES[k] for k in SIZES if k != "family"}
    fields = experiment({}).model_dump()
    if family != "resnet18":
        fields["model"] = sizes | REQUIRED[family] | model
    else:
        fields["model"] = model | {k: SIZES[k] for k in ("img_size", "in_chans", "num_classes")}
    fields["data"] = {
        "mean": HALF,
        "std": HALF,
        "class_names": tuple("abcde"),
        "augment": changes.get("augment", {}),
    }
    fields["task"] = changes.get("task", {"name": "classify"})
    if fields["task"]["name"] in ("dino", "lejepa"):
        fields["model"]["pool"] = "mean"
    fields["train"] = {"batch_size": 16, "epochs": 2} | changes.get("train", {})
    fields["optim"] = {"warmup_epochs": 1.0} | changes.get("optim", {})
    return ExperimentSpec.model_validate(fields)


def train(changes: Changes, ranks: Ranks = ALONE) -> dict[str, list[float]]:
    """Return every scalar of every step of a case.

    With SGD, the running statistics of batch norm are scalars, too. Adam makes full steps of the
    rounding in the gradient of a bias before a batch norm, which the statistics follow.
    """
    torch.manual_seed(0)
    spec = spec_of(changes)
    build = task_class(spec)
    task = build(spec, build.make_module(spec).train())
    task.ranks = ranks
    task.encoder(task.module).grad_checkpointing = spec.train.grad_checkpointing
    state = TrainState(spec, task, data_set())
    found: dict[str, list[float]] = {}
    for epoch in range(spec.train.epochs):
        for step in state.run_epoch(epoch):
            for name, value in step.scalars.items():
                found.setdefault(name, []).append(value.item())
    if spec.optim.name == "sgd":
        running = [each for name, each in state.module.named_buffers() if "running" in name]
        found["running"] = [number for each in running for number in each.tolist()]
    ranks.check_weights(state.module.state_dict())
    return found


def main() -> None:
    rank, size, folder, *names = sys.argv[1:]
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=int(rank), world_size=int(size)
    )
    found = {}
    for name in names:
        try:
            found[name] = train(CASES[name], GroupRanks())
        except LostRankError as error:  # all ranks raise it, and the next case is another test
            found[name] = {str(error): []}
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
