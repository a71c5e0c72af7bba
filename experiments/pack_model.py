"""Make a bundled model from a finished run, with weights in half precision.

Usage: python experiments/pack_model.py RUN NAME [DATA_DIR]
"""

import shutil
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.evaluate.scores import Evaluation, evaluate_run
from vitcli.runner.evaluate.weights import run_weights
from vitcli.runner.files import commit
from vitcli.runner.run.checkpoint import Checkpoint, save_checkpoint
from vitcli.runner.run.folder import BUNDLED, RunDir, find_run
from vitcli.runner.run.record import read_record
from vitcli.runner.text import portable

FACTS = (
    "experiment",
    "config_hash",
    "started",
    "commit",
    "dirty",
    "hardware",
    "torch",
    "data",
    "data_hash",
    "command",
)
MEASURED = ("parameters", "epochs", "train_accuracy", "train_loss", "train_seconds", "precision")


def pack(run: RunDir, name: str, *, data_dir: Path | None = None, to: Path = BUNDLED) -> RunDir:
    """Return a copy of a finished run with weights in half precision and measured accuracy.

    Args:
        run: A finished run of a named experiment.
        name: The name of the bundled model.
        data_dir: The folder of the data set.
        to: The folder of the bundled models.

    Raises:
        InputError: The run is not finished.
        ConfigError: A weight does not fit into half precision.
    """
    record = read_record(run)
    if record.state != "finished":
        raise InputError(f"{run.name} is not finished ({record.state})")
    packed = RunDir(to / name)
    shutil.rmtree(packed.path, ignore_errors=True)
    packed.checkpoints.mkdir(parents=True)
    save_checkpoint(packed.checkpoints, half(run))
    for file in ("config.yaml", "metrics.jsonl"):
        commit(packed.path / file, (run.path / file).read_bytes())
    facts = {key: portable(record.meta.get(key)) for key in FACTS}
    packed.set_meta(facts)
    found = evaluate_run(str(packed.path), device="cpu", data_dir=data_dir)
    packed.set_result({key: record.result.get(key) for key in MEASURED} | measures(found))
    packed.set_status("finished", record.step)
    commit(packed.path / "README.md", card(name, packed).encode())
    return packed


def half(run: RunDir) -> Checkpoint:
    """Return the trained weights in half precision; integer tensors are unchanged."""
    weights = {
        f"model.{name}": tensor.half() if tensor.is_floating_point() else tensor
        for name, tensor in run_weights(run).items()
    }
    if lost := [name for name, tensor in weights.items() if not tensor.isfinite().all()]:
        raise ConfigError(f"{run.name}: {lost[0]} does not fit into half precision")
    return Checkpoint(run.last_step(), weights, {"weights": "model"})


def measures(found: Evaluation) -> dict[str, Any]:
    """Return the test results of an evaluation for result.json."""
    scores = found.scores
    assert scores is not None, "a bundled model is a classifier"
    return {
        "test_accuracy": scores.accuracy,
        "accuracy_interval_95": list(scores.accuracy_interval),
        "test_loss": found.measured["loss"],
        "test_top5_accuracy": found.measured.get("top5_accuracy"),
        "calibration_error": found.measured["calibration_error"],
        "num_test": scores.num_images,
    }


def card(name: str, packed: RunDir) -> str:
    """Return the model card as Markdown."""
    record = read_record(packed)
    meta, result, spec = record.meta, record.result, record.spec
    low, high = (f"{100 * bound:.2f}" for bound in result["accuracy_interval_95"])
    size = sum(path.stat().st_size for path in packed.checkpoints.rglob("*.safetensors"))
    assert spec.model.img_size
    data = portable(spec.data.name)
    height, width = spec.model.img_size
    names = ", ".join(spec.data.class_names or ())
    teacher = getattr(spec.task, "teacher", None)
    taught = f"\n| teacher | `{teacher.run}` |" if teacher else ""
    return f"""# {name}

A Vision Transformer for {data}: {result["parameters"]:,} parameters, {size:,} bytes.

| | |
|---|---|
| test accuracy | {100 * result["test_accuracy"]:.2f} % of {result["num_test"]:,} images, \
last epoch |
| 95 % interval | {low} to {high} % (sampling error of the test set only; one training, \
random seed {spec.seed}) |
| test loss | {result["test_loss"]:.4f} |
| calibration error | {100 * result["calibration_error"]:.2f} % |
| training | {result["epochs"]} epochs, {result["train_seconds"] / 60:.0f} minutes, \
{meta["hardware"]}, {result["precision"]} |{taught}
| made by | `{meta["command"]}`, commit {str(meta["commit"])[:9]}, {str(meta["started"])[:10]} |
| data | {data}, hash {meta["data_hash"]} |

`vitcli eval {name}` measures the model again. The model was trained from scratch on {data} only. \
Its weights are stored in half precision and used in single precision. All numbers except those of \
the training were measured with the stored weights.

The model has {len(spec.data.class_names or ())} classes at {height}x{width} pixels: {names}. \
It assigns one of these classes to any picture, sometimes confidently and wrongly. Use it to try \
the commands and to study attention, not to classify photos.
"""


if __name__ == "__main__":
    run, name, *folder = sys.argv[1:]
    packed = pack(find_run(run), name, data_dir=Path(folder[0]) if folder else None)
    print((packed.path / "README.md").read_text())  # noqa: T201
