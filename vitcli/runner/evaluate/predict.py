"""Classification of picture files with a trained run.

Axes: N pictures, C channels, H W pixels, K classes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitcli.core.data.batches import images_at_once
from vitcli.core.data.source import Images
from vitcli.core.metrics.classification import logits_and_labels
from vitcli.core.models.image_model import ImageModel
from vitcli.core.spec import ExperimentSpec
from vitcli.runner.data.picture_reader import read_each
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.evaluate.weights import load_model
from vitcli.runner.machine.device import pick_device
from vitcli.runner.run.folder import RunDir
from vitcli.runner.run.record import stored_temperature


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The most likely classes of one picture with their probabilities, best first."""

    path: str
    top: tuple[tuple[str, float], ...] = ()
    error: InputError | None = None
    """Why the picture has no prediction."""


class Predictor:
    """A trained model with its pre-processing.

    Args:
        run: The run, or another name of the model that figures show.
        device: The device of the model.
        foreign: The spec and the model, if they do not come from the run. A foreign model without
            names of classes does not classify.
    """

    def __init__(
        self,
        run: RunDir,
        device: str = "auto",
        foreign: tuple[ExperimentSpec, ImageModel] | None = None,
    ) -> None:
        self.run = run
        self.spec = foreign[0] if foreign else run.spec()
        self.device = pick_device(device)
        model, names = self.spec.model, self.spec.data.class_names
        named = bool(names) and len(names or ()) == model.num_classes
        if not (model.img_size and model.in_chans and (named or foreign)):
            raise InputError(f"{run.path}: its config.yaml does not name sizes and classes")
        self.names, self.size, self.in_chans = names or (), model.img_size, model.in_chans
        self.classifies = named and self.spec.task.row.classifies
        self.origin = "weights of timm" if foreign else f"trained on {self.spec.data.name}"
        """Where the weights come from, as the page of ``attn-map`` says it."""
        self.temperature = (None if foreign else stored_temperature(run)) or 1.0
        """Divides the logits, so that probabilities are calibrated; 1 for a run without one."""
        self.model = foreign[1].to(self.device) if foreign else load_model(run, str(self.device))

    def predict(self, path: str, num_top: int = 5, fit: str | None = None) -> Prediction:
        """Classify one picture file (``-`` is standard input).

        ``fit`` is one of ``FITS``, by default that of the training.

        Raises:
            ConfigError: The model was not trained to classify.
            InputError: The picture cannot be read.
        """
        (found,) = self.predict_each([path], num_top, fit)
        if found.error:
            raise found.error
        return found

    def predict_each(
        self, paths: Sequence[str], num_top: int = 5, fit: str | None = None
    ) -> Iterator[Prediction]:
        """Yield a prediction for each picture file, in their order; the model sees many at once.

        A picture that cannot be read, or whose logits are not finite, yields a prediction with an
        error.

        Raises:
            ConfigError: The model was not trained to classify.
        """
        if not self.classifies:
            raise ConfigError(f"{self.run.name}: its task {self.spec.task.name!r} has no classes")
        size, fit = images_at_once(self.device), fit or self.spec.data.fit
        for start in range(0, len(paths), size):
            part = paths[start : start + size]
            pictures = [*read_each(part, self.size, self.in_chans, fit)]
            tops = self._top([each for each in pictures if isinstance(each, Tensor)], num_top)
            for path, picture in zip(part, pictures, strict=True):
                if isinstance(picture, InputError):
                    yield Prediction(path=path, error=picture)
                    continue
                top = next(tops)
                error = None if top else InputError(f"{path}: a logit is infinite or NaN")
                yield Prediction(path=path, top=top, error=error)

    def _top(self, pictures: list[Tensor], num_top: int) -> Iterator[tuple[tuple[str, float], ...]]:
        """Yield the most likely classes of each picture (C, H, W) with their probabilities.

        A picture with a logit that is infinite or NaN has none.
        """
        if not pictures:
            return
        labels = torch.zeros(len(pictures), dtype=torch.long, device=self.device)
        images = Images(torch.stack(pictures).to(self.device), labels)
        logits = logits_and_labels(self.model, images, self.spec)[0] / self.temperature  # (N, K)
        shares, indices = logits.softmax(-1).topk(min(num_top, len(self.names)))
        known = logits.isfinite().all(-1).tolist()
        for is_known, *row in zip(known, indices.tolist(), shares.tolist(), strict=True):
            top = ((self.names[i], share) for i, share in zip(*row, strict=True))
            yield tuple(top) if is_known else ()


def describe_model(predictor: Predictor) -> str:
    """Return one line that names the model and its data set."""
    run = predictor.run
    kind = "bundled model" if run.is_bundled else "run"
    return f"{kind} {run.name} ({predictor.spec.data.name})"
