"""Small trainings on gloo ranks: ``python -m tests.core.ranked RANK SIZE FOLDER CASE ...``.

One pair of processes trains all cases, because starting a process takes longer than a case.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from tests.core.specs import REQUIRED
from tests.core.trainings import data_set, experiment
from vitcli.core import ranks
from vitcli.core.objectives.objective import task_class
from vitcli.core.ranks import LostRankError
from vitcli.core.spec.task import DEFAULT_TASK, TASKS
from vitcli.core.train.training import Training

Changes = dict[str, dict[str, Any]]
SMALL: dict[str, dict[str, Any]] = {
    "classify": {},
    "mae": {},
    "ssat": {},
    "distil": {},
    "dino": {"num_prototypes": 16, "hidden_dim": 12, "bottleneck_dim": 8, "local_size": 8},
    "lejepa": {"proj_dim": 6, "hidden_dim": 12, "num_slices": 8, "local_size": 8},
    "clip": {"text_dim": 16, "text_depth": 1, "joint_dim": 8},
    "multilabel": {},
    "regress": {},
    "fusion": {"sound_patch_size": 16, "fusion": "late", "modality_dropout": 0.0},
}
"""Task -> fields that make it small."""
DROPS = {"drop_path": 0.2, "proj_drop": 0.2, "attn_drop": 0.2, "pos_drop": 0.1}
MIXES = {"mixup": 0.4, "cutmix": 1.0, "crop_padding": 1, "flip": "random", "erasing": 0.3}


def of_task(name: str, task: dict[str, Any] | None = None, **sections: dict[str, Any]) -> Changes:
    return {"task": {"name": name} | SMALL[name] | (task or {}), **sections}


PAIRED = {"modality_dropout": 0.0, "unimodal": 0.5, "contrast": 0.5}
FEATURES: dict[str, Any] = {"kind": "features", "layers": [2], "teacher_layers": ["blocks.0"]}
CASES: dict[str, Changes] = {
    **{name: of_task(name) for name in SMALL},
    "classify": of_task("classify", train={"epochs": 2}),
    "mixing": {"augment": MIXES},
    "policy": {"augment": {"policy": "rand_augment"}},
    "mixed labels": of_task("multilabel", augment=MIXES),
    "mixing in parts": {"augment": MIXES, "train": {"accumulate": 2}},
    "clip in parts": of_task("clip", train={"accumulate": 2}),
    "early": of_task("fusion", {"fusion": "early", "modality_dropout": 0.0}),
    "cross": of_task("fusion", PAIRED | {"fusion": "cross"}),
    "late": of_task("fusion", PAIRED, augment={"mixup": 0.4}),
    **{f"family {name}": {"model": {"family": name}} for name in ("swin", "pit")},
    "token": {"task": {"name": "distil", "kind": "token"}, "model": {"reg_tokens": 1}},
    "features": of_task("distil", FEATURES, train={"accumulate": 2}),
    "muon": {"optim": {"name": "muon"}},
    "sgd": {"optim": {"name": "sgd"}},
    "average": {"train": {"ema_decay": 0.9}},
}
DRAWN: dict[str, Changes] = {
    "dropout": {"model": DROPS},
    "dropout recomputed": {"model": DROPS, "train": {"grad_checkpointing": True}},
    "modality dropout": of_task("fusion", {"fusion": "cross", "modality_dropout": 0.3}),
}
"""Cases whose ranks draw numbers of their own, or round a share of their own rows."""
SMALL = {name: fields for name, fields in SMALL.items() if name in TASKS}
CASES, DRAWN = (
    {
        name: changes
        for name, changes in cases.items()
        if changes.get("task", {}).get("name", DEFAULT_TASK) in TASKS
    }
    for cases in (CASES, DRAWN)
)


def remove_batch_norms(module: nn.Module) -> None:
    for name, part in module.named_children():
        if isinstance(part, nn.BatchNorm1d):
            setattr(module, name, nn.Identity())
        else:
            remove_batch_norms(part)


def train(changes: Changes) -> dict[str, list[float]]:
    torch.manual_seed(0)
    model = dict(changes.get("model", {}))
    model = REQUIRED[model.get("family", "vit")] | model
    if changes.get("task", {}).get("name") in ("dino", "lejepa"):
        model["pool"] = "mean"
    epochs = {"epochs": 1} | changes.get("train", {})
    spec = experiment(changes | {"model": model, "train": epochs})
    build = task_class(spec)
    module = build.make_module(spec).train()
    if spec.task.name == "lejepa":  # its batch norms would see the rows of one rank
        remove_batch_norms(module)
    task = build(spec, module)
    task.encoder(task.module).grad_checkpointing = spec.train.grad_checkpointing
    state = Training(spec, task, data_set())
    found: dict[str, list[float]] = {}
    for epoch in range(spec.train.epochs):
        for step in state.run_epoch(epoch):
            for name, value in step.scalars.items():
                found.setdefault(name, []).append(value.item())
    ranks.check_weights(state.module.state_dict())
    return found


def main() -> None:
    rank, size, folder, *names = sys.argv[1:]
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", store, rank=int(rank), world_size=int(size))
    found = {}
    for name in names:
        try:
            with ranks.together():
                found[name] = train((CASES | DRAWN)[name])
            if name in DRAWN:
                found[name]["own draw"] = [torch.rand(()).item()]
        except LostRankError as error:  # all ranks raise it, and the next case is another test
            found[name] = {str(error): []}
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()
    # A thread of gloo may still hold a tensor, and abort the process while Python ends:
    # https://github.com/pytorch/pytorch/pull/179291
    os._exit(0)


if __name__ == "__main__":
    main()
