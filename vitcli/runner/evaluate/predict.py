"""Classification of picture files with a trained run.

Axes: N pictures, C channels, H W pixels, K classes.
"""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitcli.core.data.batches import images_at_once
from vitcli.core.data.source import Images
from vitcli.core.metrics.classification import logits_and_labels
from vitcli.core.metrics.confidence import COVERAGES
from vitcli.core.models.image_model import ImageModel
from vitcli.core.spec import DataSpec, ExperimentSpec
from vitcli.runner.data.deep import Seen
from vitcli.runner.data.picture_reader import read_each
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.evaluate.weights import UNTRAINED, load_model
from vitcli.runner.machine.device import pick_device
from vitcli.runner.report.report import DataTable, Fact, Field, Report, hidden
from vitcli.runner.run.folder import RunDir
from vitcli.runner.run.record import read_record
from vitcli.runner.text import Listener, join_words, quantity


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The most likely classes of one picture with their probabilities, best first."""

    path: str
    top: tuple[tuple[str, float], ...] = ()
    is_accepted: bool = False
    """Whether the likeliest class is probable enough, or the only one of the set."""
    prediction_set: tuple[str, ...] | None = None
    """The classes of the prediction set, best first; None if no set was asked for."""
    error: InputError | None = None


class Predictor:
    """A trained model with its pre-processing.

    ``foreign`` are spec and model that do not come from a run; ``run`` is then their name alone. A
    foreign model without names of classes does not classify.
    """

    def __init__(
        self,
        run: RunDir,
        device: str = "auto",
        foreign: tuple[ExperimentSpec, ImageModel] | None = None,
        on_message: Listener = warnings.warn,
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
        self.temperature = (None if foreign else read_record(run).temperature) or 1.0
        """Divides the logits, so that probabilities are calibrated; 1 for a run without one."""
        trained = foreign[1] if foreign else load_model(run, on_message=on_message)
        self.model = trained.to(self.device)
        self.seen = Seen()
        """What the pictures hold that was not read; see ``notes_on``."""

    def read_as(self, fit: str | None) -> DataSpec:
        """Return how pictures are read: as in the training, but for another ``fit``."""
        return self.spec.data.model_copy(update={"fit": fit} if fit else {})

    def set_threshold(self, coverage: float) -> float:
        """Return the least probability, with temperature 1, of a class in a prediction set."""
        if coverage not in COVERAGES:
            raise ConfigError(
                f"--coverage {coverage:g}: it takes {join_words(map(str, COVERAGES))}"
            )
        threshold = read_record(self.run).number(f"set_threshold_{coverage}")
        if threshold is None:
            raise ConfigError(
                f"{self.run.name}: --coverage needs a classification with validation pictures;"
                " train with -s data.val_split=N"
            )
        if threshold == 0:
            least = round(coverage / (1 - coverage))
            raise ConfigError(
                f"{self.run.name}: --coverage {coverage} needs {least} validation pictures, else"
                f" every set has all classes; train with -s data.val_split={least}"
            )
        return threshold

    def predict_each(
        self,
        paths: Sequence[str],
        num_top: int = 5,
        fit: str | None = None,
        reject: float = 0.0,
        threshold: float | None = None,
    ) -> Iterator[Prediction]:
        """Yield a prediction for each picture file, in their order; the model sees many at once.

        A picture that cannot be read, or whose logits are not finite, yields a prediction with an
        error. ``fit`` is by default that of the training. With a ``threshold`` (see
        ``set_threshold``), a picture is accepted if its set has one class.
        """
        if not self.classifies:
            raise ConfigError(f"{self.run.name}: its task {self.spec.task.name!r} has no classes")
        size, data = images_at_once(self.device), self.read_as(fit)
        for start in range(0, len(paths), size):
            part = paths[start : start + size]
            pictures = [*read_each(part, self.size, self.in_chans, data, self.seen)]
            logits = self._logits([file for file in pictures if isinstance(file, Tensor)])
            for path, picture in zip(part, pictures, strict=True):
                if isinstance(picture, InputError):
                    yield Prediction(path=path, error=picture)
                else:
                    yield self._judge(path, next(logits), num_top, reject, threshold)

    def _judge(
        self, path: str, logits: Tensor, num_top: int, reject: float, threshold: float | None
    ) -> Prediction:
        if not logits.isfinite().all():
            return Prediction(path=path, error=InputError(f"{path}: a logit is infinite or NaN"))
        shares, order = (logits / self.temperature).softmax(0).sort(descending=True)
        names = [self.names[i] for i in order.tolist()]
        top = tuple(zip(names, shares.tolist(), strict=True))[:num_top]
        if threshold is None:
            return Prediction(path=path, top=top, is_accepted=top[0][1] >= reject)
        count = int((logits.double().softmax(0) >= threshold).sum())
        members = tuple(names[:count])
        return Prediction(path=path, top=top, is_accepted=count == 1, prediction_set=members)

    def _logits(self, pictures: list[Tensor]) -> Iterator[Tensor]:
        if not pictures:
            return iter(())
        labels = torch.zeros(len(pictures), dtype=torch.long, device=self.device)
        images = Images(torch.stack(pictures).to(self.device), labels)
        return iter(logits_and_labels(self.model, images, self.spec)[0].cpu())


def describe_model(run: RunDir, spec: ExperimentSpec) -> str:
    """Return a line that names the model and its data set, and one for each thing to know of it."""
    text = f"{'bundled model' if run.is_bundled else 'run'} {run.name} ({spec.data.name})"
    return f"{text}\nnote: {UNTRAINED}" if read_record(run).new_head else text


def report_of(run: str, done: Sequence[Prediction], num_top: int, judged: bool) -> Report:
    """Return the answers for pictures; ``accepted`` is null unless pictures are judged."""
    rows, top = [], []
    for prediction in done:
        (best, share), (second, second_share) = [*prediction.top[:2], *[(None, None)] * 2][:2]
        rows.append(
            {
                **{"file": prediction.path, "class": best, "probability": share},
                **{"second_class": second, "second_probability": second_share},
                "accepted": prediction.is_accepted if judged else None,
                "set": prediction.prediction_set,
                "error": prediction.error and str(prediction.error),
            }
        )
        top += [
            {"file": prediction.path, "class": name, "probability": share}
            for name, share in prediction.top[:num_top]
        ]
    columns: list[Field | str] = [
        *("file", "class", "probability"),
        *(Field(f"second_{name}", is_shown=False) for name in ("class", "probability")),
        Field("accepted", is_shown=judged),
        *(["set"] if any(row["set"] is not None for row in rows) else []),
        Field("error", is_shown=False),
    ]
    accepted = sum(prediction.is_accepted for prediction in done)
    about = f"of {quantity(len(done), 'picture')}"
    judgement = [Fact("num_accepted", accepted, label="accepted", about=about)] if judged else []
    is_list = num_top > 1
    return Report(
        facts=[*hidden(run=run), *judgement],
        tables=[
            DataTable("pictures", columns, rows, is_shown=judged or not is_list),
            DataTable("top", columns[:3], top, is_shown=is_list),
        ],
    )
