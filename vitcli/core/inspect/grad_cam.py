"""Grad-CAM on patch tokens. Axes: B batch, N tokens (prefix first), D embed_dim, gh gw grid.

A layer's number is the number of blocks before it: layer 0 is the embedded patches, layer 1 is the
output of the first block.
"""

import torch
from torch import Tensor

from vitcli.core.models.image_model import MappedModel


def grad_cam(
    model: MappedModel, images: Tensor, classes: Tensor | None = None, layer: int | None = None
) -> Tensor:
    """Return how much the features at each patch support a class: (B, gh, gw), not negative.

    The weight of a channel is the gradient of the class's logit (before the softmax), averaged over
    patches. The map is relu(sum over channels of weight * feature). Selvaraju et al. 2017,
    https://arxiv.org/abs/1610.02391, equations 1 and 2. The paper is about convolutions. A ViT
    needs three changes:

    * A feature map is one channel of the patch tokens in the input of the next block's attention.
      After the last block, it is one channel in the input of the head. A norm before these inputs
      is included, as is usual for ViTs. CLS and registers have no position in the picture, so the
      mean and the map leave them out.
    * The paper uses the last convolution. The default here is the input of the last block, also
      for models that pool patches. Every patch of the last block's output supports the class,
      because attention has mixed class information into them (see docs/results/attention-maps.md).
    * The map keeps one number per patch. The paper enlarges the map to the size of the picture.

    By default, the class of an image is the likeliest one.
    """
    count = feature_layer(model, layer)
    with torch.enable_grad():
        # Autograd needs a graph up to the features, even if no parameter is trainable.
        pixels = images.detach().requires_grad_()
        logits, features = model.forward_with_features(pixels, count)
        chosen = logits.argmax(1) if classes is None else classes
        # The images of a batch are independent, so the gradient of the sum is that of each logit.
        target = logits.gather(1, chosen[:, None]).sum()
        (gradient,) = torch.autograd.grad(target, features)
    gradient, values = (model.by_place(tensor) for tensor in (gradient, features.detach()))
    weights = gradient.flatten(1, 2).mean(1)[:, None, None]  # (B, 1, 1, D)
    return (weights * values).sum(-1).relu()


def feature_layer(model: MappedModel, wanted: int | None = None) -> int:
    """Return the checked layer as a number of blocks; by default the input of the last block.

    CLS does not attend to the last block's output, so the gradient there is zero. Only the patches
    of earlier layers reach a classifier that reads CLS.
    """
    depth, reads_cls = len(model.blocks), model.cls_token is not None
    if reads_cls and not depth:
        raise ValueError("the model has no layers, so no patch reaches CLS")
    if wanted is None:
        return max(0, depth - 1)
    if not -depth <= wanted <= depth:
        raise ValueError(
            f"layer {wanted} is out of range: the model has layers 1 to {depth} (-1 is the last,"
            " 0 the embedded patches)"
        )
    count = wanted if wanted >= 0 else depth + 1 + wanted
    if reads_cls and count == depth:
        raise ValueError(
            f"the patches of layer {count}, the last, do not reach CLS, and the classifier reads"
            f" only CLS; use a layer from 0 (the embedded patches) to {depth - 1}"
        )
    return count
