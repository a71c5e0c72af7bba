"""What a finished training leaves behind: predictions, TensorBoard, result.json."""

import contextlib
from typing import Any

from vitcli.core.inspect.cost import count_parameters, forward_flops
from vitcli.core.train.evaluate import Scores, score
from vitcli.runner.evaluate.logits import save_predictions
from vitcli.runner.experiment.build import build_abstract
from vitcli.runner.files import commit, sealed
from vitcli.runner.machine.device import precision_name
from vitcli.runner.run.folder import steps
from vitcli.runner.run.tensorboard import Board
from vitcli.runner.train.trainer import Trainer

PICTURES = 8


def finish(training: Trainer) -> dict[str, Any]:
    """Measure the test set, write predictions.npz and, last of all, result.json."""
    run, spec = training.run, training.spec
    logits, labels = training.test_predictions()
    scores = score(logits, labels)
    if not steps(run.checkpoints):  # nothing was trained, but the weights must be there to be read
        training.save()
    save_predictions(run.path / "predictions.npz", logits, labels)
    with contextlib.closing(Board(run.path, training.records)) as board:
        meta = run.read("meta.json")
        groups = {name: meta.get(name) for name in ("experiment", "variant")}
        measured = {"test_accuracy": scores.accuracy, "test_loss": scores.loss}
        board.hparams(spec, measured, groups)
        show_images(training, board)
    result = summarise(training, scores)
    commit(run.path / "result.json", sealed(result))
    run.set_status("finished", training.step)
    return run.read("result.json")


def summarise(training: Trainer, scores: Scores) -> dict[str, Any]:
    """result.json; ``train_seconds`` includes evaluation and saving, ``images_per_second`` not."""
    last = training.records[-1] if training.records else {}
    images = training.step * training.spec.train.batch_size
    return {
        "test_accuracy": scores.accuracy,
        "test_loss": scores.loss,
        "test_top5_accuracy": scores.top5_accuracy,
        "calibration_error": scores.calibration_error,
        "val_accuracy": last.get("val_accuracy"),
        "best_val_accuracy": training.best[0] if training.data.val else None,
        "best_val_step": training.best[1] if training.data.val else None,
        "train_loss": last.get("train_loss"),
        "train_accuracy": last.get("train_accuracy"),
        "parameters": count_parameters(training.model),
        "forward_flops": forward_flops(build_abstract(training.spec), training.model.image_shape),
        "epochs": training.spec.train.epochs,
        "steps": training.step,
        "images_per_second": images / training.step_seconds if training.step_seconds else 0.0,
        "train_seconds": training.wall_seconds,
        "precision": precision_name(training.autocast),
        "kernels": training.kernels,
        "exact": "inexact" not in training.run.read("meta.json"),
        "num_test": scores.num_images,
    }


def show_images(training: Trainer, board: Board) -> None:
    """A few training images as the model saw them."""
    images = next(training.batches(0))["images"][:PICTURES]
    board.images("images/augmented", images, 0)
