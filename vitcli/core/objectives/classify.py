"""Supervised classification. Axes: B batch, N images, K classes."""

import math
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitcli.core.autocast import autocast_to
from vitcli.core.data.batches import Batch, eval_batches, images_at_once, limit_images
from vitcli.core.data.source import Images
from vitcli.core.metrics.classification import measure_logits
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


def logits_and_labels(
    model: nn.Module, images: Images, spec: ExperimentSpec, *, flip: bool = False
) -> tuple[Tensor, Tensor]:
    """Return logits (N, K) in fp32 and labels (N,) of a split, normalised as the spec says.

    ``train.limit_batches`` limits the split too, to evenly spaced images. ``flip`` averages over
    each image and its mirror image.
    """
    data = spec.data
    assert data.mean is not None
    assert data.std is not None
    part = limit_images(images, spec)
    size = images_at_once(images.pixels.device)
    batches = eval_batches(part, mean=data.mean, std=data.std, batch_size=size)
    return compute_logits(model, batches, flip=flip), part.labels


@torch.inference_mode()
def compute_logits(
    model: nn.Module,
    batches: Iterable[dict[str, Tensor]],
    *,
    autocast: torch.dtype | None = None,
    flip: bool = False,
) -> Tensor:
    """Return fp32 logits (N, K) of all images, in order, on the device of the batches.

    The model runs in eval mode. With ``flip`` (test-time augmentation) the result is the logarithm
    of the mean probability over the image and its mirror image. On CUDA the last batch is padded to
    the size of the others, so that a compiled model sees one shape.
    """
    was_training = model.training
    model.eval()
    rows, size = [], 0
    for batch in batches:
        images = batch["images"]
        count, size = len(images), max(size, len(images))
        if images.is_cuda and count < size:
            images = F.pad(images, (0, 0, 0, 0, 0, 0, 0, size - count))
        with autocast_to(images.device, autocast):
            logits = model(images).float()
            if flip:
                mirrored = model(images.flip(-1)).float()
                mean = torch.stack([logits, mirrored]).log_softmax(-1).logsumexp(0)
                logits = mean - math.log(2)
        rows.append(logits[:count])
    model.train(was_training)
    return torch.cat(rows)
