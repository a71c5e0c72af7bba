"""Several labels of an image at once, or a number. Axes: B batch, N images, K classes."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitcli.core.data.batches import Batch, EpochPlan, limit_images
from vitcli.core.data.source import DataSet, Images
from vitcli.core.metrics.classification import compute_logits
from vitcli.core.models.image_model import ImageModel, build_model
from vitcli.core.objectives.objective import Outputs, Task
from vitcli.core.spec import ExperimentSpec
from vitcli.plugins.targets.measures import (
    best_threshold,
    f1_scores,
    mean_average_precision,
    measure_errors,
)
from vitcli.plugins.targets.spec import RegressSpec
from vitcli.runner.errors import UserError
from vitcli.runner.evaluate.weights import run_weights
from vitcli.runner.run.folder import find_run
from vitcli.runner.text import ignore_message

HALF = 0.5
SMALLEST_SPREAD = 1e-4
"""Least standard deviation of targets, as a share of their size: they are stored in fp32."""


class Multilabel(Task):
    """Binary cross-entropy of a sigmoid for each class, the mean over classes and images.

    Images without a list of labels have their one label. Mixed images have shares of the labels of
    both.
    """

    @classmethod
    def make_module(cls, spec: ExperimentSpec) -> nn.Module:
        return build_model(spec.model, spec.seed)

    def targets(self, images: Images, rows: Tensor) -> Tensor:
        """Return 1 for each label of the images at ``rows``, else 0: (B, K) fp32."""
        if "label_set" in images.extra:
            return images.extra["label_set"][rows]
        classes = torch.arange(self.spec.model.num_classes or 1, device=rows.device)
        return (images.labels[rows][:, None] == classes).float()

    def make_batch(self, data: DataSet, rows: EpochPlan) -> Batch:
        batch = super().make_batch(data, rows)
        targets = self.targets(data.train, rows["index"])
        if "lam" in rows:  # as in ``augment.mix``
            targets = targets.roll(1, 0).lerp(targets, rows["own"][:, None].expand_as(targets))
        return batch | {"targets": targets}

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        logits = self.network(batch["images"]).float()
        return {"loss": F.binary_cross_entropy_with_logits(logits, batch["targets"])}

    def check_data(self, data: DataSet) -> None:
        for name, images in {"test": data.test, "validation": data.val}.items():
            part = limit_images(images, self.spec) if images else None
            if part and not self._all_targets(part).any():
                raise ValueError(f"data.name: no {name} image of {data.name} has a label")

    def _all_targets(self, images: Images) -> Tensor:
        return self.targets(images, torch.arange(len(images), device=images.labels.device))

    def outputs(self, module: nn.Module, images: Images) -> Outputs:
        """Return ``logits`` and ``targets``, each (N, K) fp32."""
        logits = compute_logits(module, self.eval_batches(images))
        return {"logits": logits, "targets": self._all_targets(limit_images(images, self.spec))}

    def measure(self, outputs: Outputs) -> dict[str, float]:
        """Return mAP, micro-F1 and macro-F1 as shares, and the loss in nats."""
        logits, is_right = checked(outputs["logits"]), outputs["targets"].cpu() > HALF
        micro, macro = f1_scores(logits.sigmoid() >= self.threshold, is_right)
        return {
            "loss": F.binary_cross_entropy_with_logits(logits, is_right.double()).item(),
            "mean_average_precision": mean_average_precision(logits, is_right),
            "micro_f1": micro,
            "macro_f1": macro,
        }

    def choose(self, outputs: Outputs) -> dict[str, float]:
        shares = checked(outputs["logits"]).sigmoid()
        return {"threshold": best_threshold(shares, outputs["targets"].cpu() > HALF)}

    @property
    def threshold(self) -> float:
        """Return the least probability of a label that is answered."""
        return float(self.fitted.get("threshold", HALF))

    @property
    def caveat(self) -> str:
        if "threshold" in self.fitted:
            return ""
        return (
            "labels have a probability of 0.5 or more, because no validation images have chosen a"
            " better threshold; train with -s data.val_split=N"
        )

    def answers(self, outputs: Outputs, class_names: Sequence[str]) -> list[dict[str, Any]]:
        """Return labels that reach the threshold, and all probabilities, the likeliest first."""
        rows = []
        for shares in outputs["logits"].double().sigmoid().cpu():
            order = shares.argsort(descending=True, stable=True).tolist()
            probabilities = {class_names[k]: shares[k].item() for k in order}
            labels = [name for name, share in probabilities.items() if share >= self.threshold]
            rows.append({"labels": labels, "probabilities": probabilities})
        return rows


class Regressor(nn.Module):
    """An encoder with one output, and mean and standard deviation of the training targets."""

    mean: Tensor
    std: Tensor

    def __init__(self, encoder: ImageModel) -> None:
        super().__init__()
        self.encoder = encoder
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("std", torch.ones(()))

    def forward(self, images: Tensor) -> Tensor:
        """Return the first output of the encoder: (B, C, H, W) -> (B, 1)."""
        return self.encoder(images)[:, :1]


class Regress(Task):
    """The squared or absolute error of targets with mean 0 and standard deviation 1."""

    encoder_name = "encoder"

    @classmethod
    def make_module(cls, spec: ExperimentSpec) -> nn.Module:
        return Regressor(build_model(spec.model, spec.seed))

    @classmethod
    def read_data(cls, module: nn.Module, spec: ExperimentSpec, data: DataSet) -> None:
        if "target" not in data.train.extra:
            raise ValueError(
                f"task.name: 'regress' learns numbers, and {data.name} has none; name a table with"
                " the columns path and target: --data csv:FILE.csv"
            )
        targets = data.train.extra["target"].double()
        mean, std = targets.mean(), targets.std(correction=0)
        if std < SMALLEST_SPREAD * targets.abs().max() or not std:
            raise ValueError(
                f"data.name: the training targets of {data.name} are all about {mean:g}; subtract"
                " what they have in common"
            )
        for name, number in ({"mean": mean, "std": std} | _learned_scale(spec)).items():
            module.get_buffer(name).copy_(number)

    @property
    def regressor(self) -> Regressor:
        return cast(Regressor, self.module)

    def make_batch(self, data: DataSet, rows: EpochPlan) -> Batch:
        targets = data.train.extra["target"][rows["index"]]
        return super().make_batch(data, rows) | {"targets": targets}

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        outputs = self.network(batch["images"]).float()
        targets = (batch["targets"] - self.regressor.mean) / self.regressor.std
        return {"loss": self._loss(outputs, targets)}

    def _loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        is_squared = cast(RegressSpec, self.spec.task).loss == "squared"
        return F.mse_loss(outputs, targets) if is_squared else F.l1_loss(outputs, targets)

    def outputs(self, module: nn.Module, images: Images) -> Outputs:
        """Return ``predictions`` and, where they are known, ``targets``, each (N,) fp32."""
        standardised = compute_logits(module, self.eval_batches(images))
        predictions = standardised * self.regressor.std + self.regressor.mean
        outputs = {"predictions": predictions[:, 0]}
        if "target" in images.extra:
            outputs["targets"] = limit_images(images, self.spec).extra["target"][:, 0]
        return outputs

    def measure(self, outputs: Outputs) -> dict[str, float]:
        """Return errors in the unit of the targets, R2 unless all are equal, and the loss."""
        predictions, targets = (checked(outputs[name]) for name in ("predictions", "targets"))
        std = self.regressor.std.double().cpu()
        loss = self._loss(predictions / std, targets / std).item()
        return {"loss": loss, **measure_errors(predictions, targets)}

    def answers(self, outputs: Outputs, class_names: Sequence[str]) -> list[dict[str, Any]]:
        return [{"target": number} for number in outputs["predictions"].tolist()]


def _learned_scale(spec: ExperimentSpec) -> dict[str, Tensor]:
    """Return mean and deviation of the run whose head a training without epochs keeps."""
    if spec.train.init and not spec.train.epochs:
        with suppress(UserError):  # published weights, whose head is new
            first = find_run(spec.train.init)
            if first.spec().task.name == spec.task.name:
                weights = run_weights(first, on_message=ignore_message)
                return {name: weights[name] for name in ("mean", "std")}
    return {}


def checked(outputs: Tensor) -> Tensor:
    if not outputs.isfinite().all():
        raise ValueError("an output is infinite or NaN")
    return outputs.double().cpu()
