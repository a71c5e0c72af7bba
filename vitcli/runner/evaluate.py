"""Load a run's weights and measure them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from vitcli.core.data.source import Images
from vitcli.core.inspect.cost import count_parameters
from vitcli.core.models.build import build_model
from vitcli.core.models.image_model import ImageModel
from vitcli.core.train.evaluate import Scores, score
from vitcli.runner.checkpoint import latest_checkpoint, load_checkpoint
from vitcli.runner.config import model_hash
from vitcli.runner.datasets import load_data
from vitcli.runner.device import pick_device
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.measure import logits_and_labels, save_predictions
from vitcli.runner.pictures import read_picture
from vitcli.runner.run_dir import PACKAGED, RunDir, find_run, list_runs, steps

DEFAULT = "cifar10-pocket"
"""The packaged model that is taken where nothing was trained."""


def ignore(_: str) -> None:
    """The default listener."""


def run_weights(
    run: RunDir, step: int | None = None, on_message: Callable[[str], None] = ignore
) -> dict[str, Tensor]:
    """The weights that count in a run: those of its last checkpoint, averaged where EMA is used."""
    if step is not None:
        if step not in steps(run.checkpoints):
            raise InputError(f"{run.path}: no checkpoint of step {step}")
        checkpoint = load_checkpoint(run.checkpoints / str(step))
    else:
        found = latest_checkpoint(run.checkpoints, on_message)
        if found is None:
            raise InputError(
                f"{run.path}: no checkpoint yet ({run.status()['state']});"
                f" train it: vitcli train --resume {run.name}"
            )
        checkpoint = found
        if checkpoint.step < (promised := run.status()["step"]):
            on_message(f"the checkpoint of step {promised} is gone, {checkpoint.step} is taken")
    own = model_hash(run.spec().model)
    if checkpoint.state.get("model", own) != own:
        raise InputError(f"{run.path}: its checkpoints are those of another model")
    weights = checkpoint.part(str(checkpoint.state.get("weights")))
    if not weights or not all(tensor.isfinite().all() for tensor in weights.values()):
        raise InputError(f"{run.path}: the weights of step {checkpoint.step} are not finite")
    return weights


def load_model(
    run: RunDir | str | Path,
    device: str = "cpu",
    step: int | None = None,
    on_message: Callable[[str], None] = ignore,
) -> ImageModel:
    """A run's trained model in eval mode.

    Args:
        run: A run folder, or a name under runs/.
        device: Where to put it: cpu, cuda, mps or auto.
        step: Which checkpoint; the last unless given.

    Raises:
        InputError: No such run, or no whole checkpoint in it.
    """
    run = run if isinstance(run, RunDir) else find_run(str(run))
    weights = run_weights(run, step, on_message)
    try:
        model = build_model(run.spec().model)
        model.load_state_dict(weights)
    except (RuntimeError, ValueError) as error:
        raise InputError(f"{run.path}: checkpoint and config.yaml do not fit together") from error
    return model.to(pick_device(device)).eval()


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What ``vitcli eval`` reports."""

    run: RunDir
    scores: Scores
    class_names: tuple[str, ...]
    parameters: int
    split: str
    tta: bool


def evaluate_run(
    name: str,
    *,
    split: str = "test",
    tta: bool = False,
    step: int | None = None,
    device: str = "auto",
    data_dir: Path | None = None,
    offline: bool = False,
    limit_batches: int | None = None,
    predictions: Path | None = None,
    on_message: Callable[[str], None] = ignore,
) -> Evaluation:
    """Measure a run on its own data set, in fp32."""
    run = find_run(name)
    spec = run.spec()
    where = pick_device(device)
    model = load_model(run, str(where), step, on_message)
    data = load_data(spec.data, data_dir=data_dir, offline=offline, on_message=on_message)
    seen = run.read("meta.json").get("data_hash")
    if seen and seen != data.data_hash:
        on_message(f"note: these images differ from those of the training (hash {seen[:12]})")
    images = {"test": data.test, "val": data.val, "train": data.train}[split]
    if images is None:
        raise ConfigError(f"{run.name} was trained without a validation split (data.val_split)")
    if images.pixels.shape[2:] != spec.model.img_size or images.pixels.shape[1] != data.in_chans:
        raise InputError(
            f"{run.name} takes images of {spec.model.img_size}, but {spec.data.name} now has"
            f" {tuple(images.pixels.shape[2:])}"
        )
    spec = spec.replace(train=spec.train.replace(limit_batches=limit_batches))
    logits, labels = logits_and_labels(model, images.to(where), spec, flip=tta)
    if predictions:
        save_predictions(predictions, logits, labels)
    return Evaluation(
        run=run,
        scores=score(logits, labels),
        class_names=spec.data.class_names or data.class_names,
        parameters=count_parameters(model),
        split=split,
        tta=tta,
    )


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The likeliest classes of one picture, best first, with their probabilities."""

    path: str
    top: tuple[tuple[str, float], ...]


class Predictor:
    """A run's model with the pre-processing that it was trained with."""

    def __init__(self, run: RunDir, device: str = "auto") -> None:
        self.run = run
        self.spec = run.spec()
        self.device = pick_device(device)
        model, names = self.spec.model, self.spec.data.class_names
        if not (model.img_size and model.in_chans and names and len(names) == model.num_classes):
            raise InputError(f"{run.path}: its config.yaml does not name sizes and classes")
        self.names, self.size, self.in_chans = names, model.img_size, model.in_chans
        self.model = load_model(run, str(self.device))

    def predict(self, path: str, num_top: int = 5, fit: str = "crop") -> Prediction:
        """Classify one picture file (or ``-``, standard input); ``fit`` is a row of ``FITS``."""
        pixels = read_picture(path, size=self.size, in_chans=self.in_chans, fit=fit)
        images = Images(
            pixels[None].to(self.device), torch.zeros(1, dtype=torch.long, device=self.device)
        )
        logits = logits_and_labels(self.model, images, self.spec)[0]
        shares, indices = logits[0].softmax(-1).topk(min(num_top, len(self.names)))
        rows = zip(indices.tolist(), shares.tolist(), strict=True)
        return Prediction(path=path, top=tuple((self.names[i], share) for i, share in rows))


def introduced(predictor: Predictor) -> str:
    """Which model answers, in a line."""
    run = predictor.run
    kind = "packaged model" if run.is_packaged else "run"
    return f"{kind} {run.name} ({predictor.spec.data.name})"


def default_run() -> RunDir:
    """The newest finished training here, else the model that comes with vitcli.

    Trials of a study are left out, since most of them lack a part on purpose, and so are models of
    the embedded shapes, which know no photo.
    """
    for run in reversed(list_runs()):
        meta = run.read("meta.json")
        is_real = not meta.get("variant") and meta.get("data") != "shapes"
        if is_real and run.status()["state"] == "finished":
            return run
    return RunDir(PACKAGED / DEFAULT)
