"""Losses of tiny trainings, one of each family, optimiser and schedule, and some of what they draw.

    python -m tests.reference.losses

writes losses.json beside this file. Do so only when a change is meant to change the numbers, and
say in CHANGELOG.md which numbers change. The trainings are those of tests/core: 64 random images,
12 steps of 16 images, fp32, plain kernels.
"""

import json
from pathlib import Path
from typing import Any

from tests.core.specs import REQUIRED
from tests.core.trainings import train_state
from vitcli.core.spec import OPTIMIZERS, SCHEDULES

FILE = Path(__file__).with_name("losses.json")
TOLERANCE = 1e-5
"""Largest relative difference of a loss on another processor. Without AVX2 (ATEN_CPU_CAPABILITY,
ONEDNN_MAX_CPU_ISA and MKL_CBWR), losses differ by at most 5e-7; another beta2, by 1e-4."""
LOOSE = {"family pit": 1e-4, "family resnet18": 3e-3}
"""Families that amplify rounding: 1.3e-5 and, because of batch norms, 2.8e-4 without AVX2."""
AUGMENT = {"crop_padding": 2, "flip": "random", "erasing": 0.3, "mixup": 0.4, "cutmix": 1.0}
RECIPES: dict[str, dict[str, dict[str, Any]]] = {
    "augmentation": {"augment": AUGMENT},
    "average and parts": {"train": {"ema_decay": 0.9, "accumulate": 2}},
    "smoothing and clipping": {
        "train": {"label_smoothing": 0.1},
        "optim": {"max_grad_norm": 0.1},
    },
    "drop path": {"model": {"drop_path": 0.2}},
}


def cases() -> dict[str, dict[str, dict[str, Any]]]:
    """Return name -> changes of a training; a new row of a table is a new case."""
    families = [name for name in REQUIRED if name != "timm"]
    return {
        **{f"family {name}": of_family(name) for name in families},
        **{f"optimizer {name}": {"optim": {"name": name}} for name in OPTIMIZERS},
        **{f"schedule {name}": {"optim": {"schedule": name}} for name in SCHEDULES},
        **RECIPES,
    }


def of_family(name: str) -> dict[str, dict[str, Any]]:
    """Return the changes of a family.

    Before a batch norm, some gradients are rounding errors, which Adam makes as large as any other.
    """
    plain = {"optim": {"name": "sgd"}} if name in ("resnet18", "convnet") else {}
    return {"model": {"family": name} | REQUIRED[name], **plain}


def losses(changes: dict[str, dict[str, Any]]) -> list[float]:
    """Return the loss of each step, and the test loss of the trained weights or their average."""
    training = train_state(changes | {"optim": {"lr": 0.01} | changes.get("optim", {})})
    task, epochs = training.task, range(training.spec.train.epochs)
    found = [step.scalars["loss"].item() for each in epochs for step in training.run_epoch(each)]
    outputs = task.outputs(training.evaluated_module, training.data.test)
    return [*found, task.measure(outputs)["loss"]]


def main() -> None:
    found = {
        name: [float(f"{loss:.7g}") for loss in losses(each)] for name, each in cases().items()
    }
    FILE.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
