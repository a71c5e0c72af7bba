"""Supervised classification. Axes: B batch, K classes."""

import torch.nn.functional as F
from torch import Tensor, nn

from vitcli.core.nn.linear_attention import redraw_features


class Classify:
    """Cross-entropy with label smoothing, on class indices (B,) or probabilities (B, K).

    Label smoothing: Szegedy et al. 2016, https://arxiv.org/abs/1512.00567
    """

    def __init__(self, model: nn.Module, label_smoothing: float = 0.0, seed: int = 0) -> None:
        self.model, self.label_smoothing, self.seed = model, label_smoothing, seed

    def losses(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """The loss to minimise, and the share of images whose likeliest target was predicted."""
        targets = batch["targets"]
        logits = self.model(batch["images"]).float()  # (B, K)
        loss = F.cross_entropy(logits, targets, label_smoothing=self.label_smoothing)
        labels = targets.argmax(-1) if targets.ndim == 2 else targets
        accuracy = (logits.detach().argmax(-1) == labels).float().mean()
        return {"loss": loss, "accuracy": accuracy}

    def after_step(self, step: int) -> None:
        """Random features are drawn anew where that is due."""
        redraw_features(self.model, self.seed, step)
