"""Classification of picture files with a trained run.

Axes: N pictures, C channels, H W pixels, K classes.
"""

import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitcli.core.data.augment import standardize
from vitcli.core.data.batches import channels_on_device, images_at_once
from vitcli.core.data.source import Images
from vitcli.core.metrics.classification import compute_logits
from vitcli.core.models.image_model import ImageModel
from vitcli.core.objectives.objective import Task, task_class
from vitcli.core.spec import DataSpec, ExperimentSpec
from vitcli.runner.data.deep import MOST_SEEN, Seen, depth_fields, notes_on
from vitcli.runner.data.pictures import Content, decode
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.evaluate.classifier import Classifier, threshold_of
from vitcli.runner.evaluate.scores import why_doubtful, why_uncalibrated
from vitcli.runner.evaluate.weights import UNTRAINED, load_module, weights_sha256
from vitcli.runner.experiment.build import encoder_of
from vitcli.runner.experiment.config import model_hash
from vitcli.runner.files import sha256
from vitcli.runner.machine.device import pick_device
from vitcli.runner.run.folder import RunDir, find_run
from vitcli.runner.run.record import read_record
from vitcli.runner.text import Listener

MOST_VALUES = 2**22
"""Number of values of the pictures that a model computes at once: 16 MiB in fp32."""


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
        row = self.spec.task.row
        self.classifies = named and row.classifies
        self.answers = () if foreign else row.answers
        """What the task says of a picture instead of one likeliest class."""
        self.names_outputs = self.classifies or bool(self.answers)
        """Whether each output of the model has the name of a class."""
        self.origin = "weights of timm" if foreign else f"trained on {self.spec.data.name}"
        """Where the weights come from, as the page of ``attn-map`` says it."""
        self.temperature = (None if foreign else read_record(run).temperature) or 1.0
        """Divides the logits, so that probabilities are calibrated; 1 for a run without one."""
        self.seen = Seen()
        """What the pictures hold that was not read; see ``notes_on``."""
        self.task: Task | None = None
        """The task of a run, which says what its outputs mean."""
        if foreign:
            self.model = foreign[1].to(self.device)
            return
        module = load_module(run, self.spec, str(self.device), on_message=on_message)
        self.model = encoder_of(self.spec, module)
        self.task = task_class(self.spec)(self.spec, module)
        self.task.fitted = (record := read_record(run)).result or record.reached

    def read_as(self, fit: str | None) -> DataSpec:
        """Return how pictures are read: as in the training, but for another ``fit``."""
        return self.spec.data.model_copy(update={"fit": fit} if fit else {})

    def prepare(self, picture: Content, name: str, data: DataSpec) -> Tensor:
        """Return the pixels (C, H, W) uint8 that the model sees. Call it in ``quiet_pillow``."""
        seen = self.seen if len(self.seen) < MOST_SEEN else None  # a server runs for months
        return decode(picture, name, self.size, self.in_chans, data, seen)

    def logits(self, pictures: Sequence[Tensor]) -> np.ndarray:
        """Return the logits (N, K) of N pictures as ``prepare`` returns them."""
        mean, std = channels_on_device(
            self.spec.data.mean or (), self.spec.data.std or (), self.device
        )
        images = standardize(torch.stack([*pictures]).to(self.device), mean, std)
        return compute_logits(self.model, [{"images": images}]).cpu().numpy()

    def answer(self, pictures: Sequence[Tensor]) -> list[dict[str, Any] | None]:
        """Return the answers of the task; None for a picture with an output that is not finite."""
        assert self.task, "a run has a task"
        labels = torch.zeros(len(pictures), dtype=torch.long, device=self.device)
        images = Images(torch.stack([*pictures]).to(self.device), labels)
        outputs = self.task.outputs(self.task.module, images)
        are_finite = [t.isfinite().view(len(t), -1).all(1) for t in outputs.values()]
        rows = zip(
            self.task.answers(outputs, self.names), zip(*are_finite, strict=True), strict=True
        )
        return [answer if all(finite) else None for answer, finite in rows]

    def notes(self) -> list[str]:
        """Return what the pictures so far held that was not read, and what limits the answers."""
        caveat = self.task.caveat if self.task and self.answers else ""
        caveats = [f"note: {caveat}"] if caveat else []
        return [*notes_on(self.seen), *caveats]


def classifier_of_run(
    run: RunDir | str,
    *,
    device: str = "auto",
    fit: str | None = None,
    reject: float | None = None,
    coverage: float | None = None,
    on_message: Listener = warnings.warn,
) -> Classifier:
    """Return the classifier of a run; the arguments are those of ``load_classifier``."""
    run = run if isinstance(run, RunDir) else find_run(run)
    predictor = Predictor(run, device, on_message=on_message)
    spec, record = predictor.spec, read_record(run)
    if not (predictor.classifies or predictor.answers):
        raise ConfigError(f"{run.name}: its task {spec.task.name!r} has no classes")
    if record.new_head:
        on_message(f"note: {UNTRAINED}")
    if doubt := why_doubtful(record):
        on_message(f"note: {run.name}: {doubt}")
    if reject is not None and (reason := why_uncalibrated(record)):
        on_message(f"note: the probabilities are not calibrated: {reason}")
    coverage = None if predictor.answers else coverage
    data = predictor.read_as(fit)
    decisive = (depth_fields(data), predictor.answers and (record.result or record.reached))
    computed = (
        weights_sha256(predictor.model.state_dict()),
        model_hash(spec.model),  # such as num_heads, which no tensor shows
        [data.mean, data.std],
        sorted(spec.code.items()),
    )
    num_values = predictor.in_chans * predictor.size[0] * predictor.size[1]
    return Classifier(
        model=run.name,
        source=str(run.path),
        about=describe_model(run, spec).partition("\n")[0],
        weights=sha256(repr(computed).encode()),
        names=predictor.names,
        prepare=partial(predictor.prepare, data=data),
        logits=predictor.answer if predictor.answers else predictor.logits,
        batch_size=max(1, min(images_at_once(predictor.device), MOST_VALUES // num_values)),
        temperature=predictor.temperature,
        reject=reject,
        threshold=threshold_of(run.name, record.thresholds, coverage),
        options=repr((data.fit, *filter(None, decisive))) if any(decisive) else data.fit,
        notes=predictor.notes,
        answers=predictor.answers,
    )


def describe_model(run: RunDir, spec: ExperimentSpec) -> str:
    """Return a line that names the model and its data set, and one for each thing to know of it."""
    text = f"{'bundled model' if run.is_bundled else 'run'} {run.name} ({spec.data.name})"
    return f"{text}\nnote: {UNTRAINED}" if read_record(run).new_head else text
