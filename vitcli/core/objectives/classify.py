"""Supervised classification. Axes: B batch, N images, K classes."""

import torch.nn.functional as F
from torch import Tensor, nn

from vitcli.core.data.batches import Batch
from vitcli.core.data.source import Images
from vitcli.core.metrics.classification import logits_and_labels, measure_logits
from vitcli.core.models.build import build_model
from vitcli.core.objectives.objective import Outputs, Task
from vitcli.core.spec import ExperimentSpec


class Classify(Task):
    """Cross-entropy with label smoothing, on class indices (B,) or probabilities (B, K).

    Label smoothing: Szegedy et al. 2016, https://arxiv.org/abs/1512.00567
    """

    @classmethod
    def make_module(cls, spec: ExperimentSpec) -> nn.Module:
        return build_model(spec.model, spec.seed)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Return the loss and the share of images whose most likely target was predicted."""
        return self.class_losses(self.network(batch["images"]).float(), batch["targets"])

    def class_losses(self, logits: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return what ``losses`` returns for logits (B, K) in fp32 and their targets."""
        smoothing = self.spec.train.label_smoothing
        loss = F.cross_entropy(logits, targets, label_smoothing=smoothing)
        labels = targets.argmax(-1) if targets.ndim == 2 else targets
        accuracy = (logits.detach().argmax(-1) == labels).float().mean()
        return {"loss": loss, "accuracy": accuracy}

    def outputs(self, module: nn.Module, images: Images, *, flip: bool = False) -> Outputs:
        """Return ``logits`` (N, K) in fp32 and ``labels`` (N,)."""
        logits, labels = logits_and_labels(module, images, self.spec, flip=flip)
        return {"logits": logits, "labels": labels}

    def measure(self, outputs: Outputs) -> dict[str, float]:
        """Return accuracies (shares), the loss in nats and the calibration error.

        The top-5 accuracy is left out with five or fewer classes.
        """
        return measure_logits(outputs["logits"], outputs["labels"])
