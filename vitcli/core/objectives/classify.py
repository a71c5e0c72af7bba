"""Supervised classification. Axes: B batch, N images, K classes."""

import math
from collections.abc import Mapping
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from vitcli.core.data.batches import Batch, EpochPlan, balanced_order
from vitcli.core.data.source import DataSet, Images
from vitcli.core.metrics.classification import logits_and_labels, measure_logits
from vitcli.core.metrics.confidence import COVERAGES, fit_temperature, set_threshold
from vitcli.core.models.image_model import build_model
from vitcli.core.objectives.objective import Outputs, Task
from vitcli.core.spec import ExperimentSpec

EXPLODED = 3.0
"""A loss above this many times log(K), that of equal guesses, is no part of learning: new weights
begin near log(K)."""


class Classify(Task):
    """Cross-entropy with label smoothing, on class indices (B,) or probabilities (B, K).

    Label smoothing: Szegedy et al. 2016, https://arxiv.org/abs/1512.00567
    """

    minimises_cross_entropy: ClassVar[bool] = True
    """Whether ``loss`` is the cross-entropy alone."""
    _weights: Tensor | None = None
    """Weight of each class, (K,)."""

    def rows(self, data: DataSet, epoch: int) -> EpochPlan:
        """Return the rows of an epoch; with ``train.class_balance: sampling``, drawn by class.

        An image that is drawn twice is augmented twice, with the draws of two images. So with
        ``flip: alternating``, an image does not alternate.
        """
        rows = super().rows(data, epoch)
        if self.spec.train.class_balance == "sampling":
            labels = data.train.labels.cpu()
            rows = rows | {"index": balanced_order(labels, self.spec.seed, epoch)}
        return rows

    def make_batch(self, data: DataSet, rows: EpochPlan) -> Batch:
        """Return the batch; with ``train.class_balance: weights`` also the ``weights`` (B,).

        The weight of an image is N / (K N_k), for N_k of N images in its class k. Of a mixed image,
        it is the mean of both, by their shares.
        """
        batch = super().make_batch(data, rows)
        if self.spec.train.class_balance == "weights":
            if self._weights is None:  # computed once: a CUDA graph cannot capture bincount
                counts = data.train.labels.bincount(minlength=data.num_classes)
                self._weights = len(data.train) / (data.num_classes * counts.clamp(min=1).float())
            table, targets = self._weights, batch["targets"]
            batch["weights"] = targets @ table if targets.ndim == 2 else table[targets]
        return batch

    @classmethod
    def make_module(cls, spec: ExperimentSpec) -> nn.Module:
        return build_model(spec.model, spec.seed)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Return the loss and the share of images whose most likely target was predicted."""
        logits = self.network(batch["images"]).float()
        return self.class_losses(logits, batch["targets"], batch.get("weights"))

    def class_losses(
        self, logits: Tensor, targets: Tensor, weights: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Return what ``losses`` returns, for fp32 logits (B, K), targets and weights (B,)."""
        smoothing = self.spec.train.label_smoothing
        if weights is None:
            loss = F.cross_entropy(logits, targets, label_smoothing=smoothing)
        else:
            each = F.cross_entropy(logits, targets, label_smoothing=smoothing, reduction="none")
            loss = (weights * each).mean()
        labels = targets.argmax(-1) if targets.ndim == 2 else targets
        accuracy = (logits.detach().argmax(-1) == labels).float().mean()
        return {"loss": loss, "accuracy": accuracy}

    def diagnose(self, numbers: Mapping[str, float]) -> str:
        guess = math.log(max(2, self.encoder(self.module).num_classes))
        if not self.minimises_cross_entropy or numbers["loss"] <= EXPLODED * guess:
            return ""
        return (
            f"the loss has exploded: its mean over an epoch is above {EXPLODED:g} times that of"
            f" equal guesses ({guess:.2f}); lower optim.lr, or look at a step with --replay"
        )

    def outputs(self, module: nn.Module, images: Images) -> Outputs:
        """Return ``logits`` (N, K) in fp32 and ``labels`` (N,)."""
        logits, labels = logits_and_labels(module, images, self.spec)
        return {"logits": logits, "labels": labels}

    def choose(self, outputs: Outputs) -> dict[str, float]:
        """Return thresholds of prediction sets, and the temperature if there is one.

        If no validation image is classified wrongly, there is none.
        """
        logits, labels = outputs["logits"], outputs["labels"]
        fitted = {
            f"set_threshold_{each}": set_threshold(logits, labels, each) for each in COVERAGES
        }
        temperature = fit_temperature(logits, labels)
        return fitted if temperature is None else fitted | {"temperature": temperature}

    def measure(self, outputs: Outputs) -> dict[str, float]:
        """Return accuracies (shares), the loss in nats and the calibration error."""
        return measure_logits(outputs["logits"], outputs["labels"])
