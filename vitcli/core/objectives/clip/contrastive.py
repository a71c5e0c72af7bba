"""The contrastive loss, and ensembles of prompts.

Axes: B batch, K classes, V prompts of a class, E width of the joint space.
Radford et al. 2021, https://arxiv.org/abs/2103.00020
"""

import torch.nn.functional as F
from torch import Tensor


def contrastive_loss(images: Tensor, texts: Tensor, scale: Tensor, caption: Tensor) -> Tensor:
    """Return the symmetric cross-entropy of similarities in a batch.

    An image's targets are all texts that equal its own caption, with equal probability, and vice
    versa. CLIP has only its own caption as target, because equal captions are rare in its data.
    Swapping images and texts does not change the loss.

    Args:
        images: Unit vectors (B, E).
        texts: Unit vectors (B, E) of the captions.
        scale: Factor of the similarities, a scalar: the inverse of the temperature.
        caption: (B,) int64; equal captions have equal numbers.
    """
    logits = scale * images @ texts.mT
    same = (caption[:, None] == caption[None]).to(logits.dtype)
    targets = same / same.sum(1, keepdim=True)
    return (F.cross_entropy(logits, targets) + F.cross_entropy(logits.mT, targets)) / 2


def loss_floor(subject: Tensor) -> Tensor:
    """Return the smallest loss that a batch allows on average, as a scalar.

    Captions of one subject describe its images equally well, because the template is drawn anew in
    every epoch. So the best model spreads the probability over the captions with the subject, and
    the loss is the mean logarithm of their number. With 10 classes and 128 images this is 2.5.

    Args:
        subject: (B,) int64: what each caption says.
    """
    return (subject[:, None] == subject[None]).sum(1).float().log().mean()


def ensemble(prompts: Tensor) -> Tensor:
    """Return the mean direction of the prompts of a class: (K, V, E) -> unit vectors (K, E)."""
    return F.normalize(F.normalize(prompts, dim=-1).mean(1), dim=-1)
