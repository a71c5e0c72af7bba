"""Classification of single pictures with a trained run."""

from dataclasses import dataclass

import torch

from vitcli.core.data.source import Images
from vitcli.core.train.evaluate import logits_and_labels
from vitcli.runner.data.pictures import read_picture
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.evaluate.weights import load_model
from vitcli.runner.machine.device import pick_device
from vitcli.runner.run.folder import RunDir


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The most likely classes of one picture with their probabilities, best first."""

    path: str
    top: tuple[tuple[str, float], ...]


class Predictor:
    """The model of a run with its pre-processing."""

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
        """Classify one picture file (``-`` is standard input); ``fit`` is a key of ``FITS``.

        Raises:
            ConfigError: The model was not trained to classify.
            InputError: The picture cannot be read.
        """
        if not self.spec.task.row.classifies:
            raise ConfigError(f"{self.run.name}: its task {self.spec.task.name!r} has no classes")
        pixels = read_picture(path, size=self.size, in_chans=self.in_chans, fit=fit)
        images = Images(
            pixels[None].to(self.device), torch.zeros(1, dtype=torch.long, device=self.device)
        )
        logits = logits_and_labels(self.model, images, self.spec)[0]
        shares, indices = logits[0].softmax(-1).topk(min(num_top, len(self.names)))
        rows = zip(indices.tolist(), shares.tolist(), strict=True)
        return Prediction(path=path, top=tuple((self.names[i], share) for i, share in rows))


def describe_model(predictor: Predictor) -> str:
    """Return one line that names the model and its data set."""
    run = predictor.run
    kind = "bundled model" if run.is_bundled else "run"
    return f"{kind} {run.name} ({predictor.spec.data.name})"
