"""Grad-CAM on patch tokens. Axes: B batch, N tokens (prefix first), D embed_dim, gh gw grid.

Layers are counted by the blocks before them: 0 is the embedded patches, 1 what leaves the first
block.
"""

import torch
from torch import Tensor

from vitcli.core.models.vit import VisionTransformer
from vitcli.core.nn.block import PreNorm


def grad_cam(
    model: VisionTransformer,
    images: Tensor,
    classes: Tensor | None = None,
    layer: int | None = None,
) -> Tensor:
    """Where the features of a layer speak for a class: (B, gh, gw), not negative.

    The weight of a channel is the mean over patches of the gradient of the class's logit (before
    the softmax); the map is relu(sum over channels of weight * feature). Selvaraju et al. 2017,
    https://arxiv.org/abs/1610.02391, equations 1 and 2. The paper is about convolutions, so here:

    * a feature map is one channel of the patch tokens as the next layer's attention reads them, or
      the head after the last: behind the norm, if there is one, as is usual for ViTs. CLS and
      registers have no place, and neither the mean nor the map counts them;
    * the paper takes the last convolution; here it is what the last block reads, also where patches
      are pooled: after that block they speak for the class whether or not they show it
      (docs/attention-maps.md);
    * the map stays one number a patch; the paper enlarges it to the picture's size.

    Args:
        model: In eval mode.
        images: (B, C, H, W), normalised.
        classes: (B,) indices; the likeliest class of each image unless given.
        layer: From 0, or -1 backwards from the last block; what the last block reads unless given.

    Raises:
        ValueError: There is no such layer, or its patches do not reach the read-out.
    """
    count = feature_layer(model, layer)
    with torch.no_grad():
        tokens = model.blocks[:count](model.embed(images))
        features = read_features(
            model, tokens, count
        ).clone()  # post-norm reads the tokens themselves
    with torch.enable_grad():
        features.requires_grad_()
        logits = logits_of(model, tokens, features, count)
        chosen = logits.argmax(1) if classes is None else classes
        target = logits.gather(1, chosen[:, None]).sum()  # images do not mix: one pass serves all
        (gradient,) = torch.autograd.grad(target, features)
    first = model.num_prefix_tokens
    weights = gradient[:, first:].mean(1, keepdim=True)  # (B, 1, D)
    shown = (weights * features.detach()[:, first:]).sum(-1).relu()
    return shown.unflatten(-1, model.grid_size)


def read_features(model: VisionTransformer, tokens: Tensor, count: int) -> Tensor:
    """What attention, or after all blocks the head, reads of the tokens (B, N, D): (B, N, D)."""
    if count == len(model.blocks):
        return model.norm(tokens)
    return next_branch(model, count).inner_input(tokens)


def logits_of(model: VisionTransformer, tokens: Tensor, features: Tensor, count: int) -> Tensor:
    """The rest of the model, where these ``features`` are read of the tokens: (B, K)."""
    if count == len(model.blocks):
        return model.forward_head(features)
    branch = next_branch(model, count)
    tokens = branch.merge(tokens, branch.inner(features))
    for other in list(model.blocks[count].children())[1:]:
        tokens = other(tokens)
    return model.forward_head(model.norm(model.blocks[count + 1 :](tokens)))


def next_branch(model: VisionTransformer, count: int) -> PreNorm:
    """The attention of the block that follows the first ``count``."""
    branch = next(model.blocks[count].children())
    assert isinstance(branch, PreNorm)
    return branch


def last_feature_layer(model: VisionTransformer) -> int:
    """The last layer whose patches reach the read-out: after every block, but one less for CLS.

    What the last block makes of the patches is not seen by CLS any more, so its gradient is zero.

    Raises:
        ValueError: CLS is read out and there is no block in which it could see a patch.
    """
    depth = len(model.blocks)
    if model.cls_token is None:
        return depth
    if depth == 0:
        raise ValueError("in a model without layers nothing of the picture reaches CLS")
    return depth - 1


def feature_layer(model: VisionTransformer, wanted: int | None = None) -> int:
    """``wanted`` as a number of blocks, after checking it; one less than there are without one."""
    last, depth = last_feature_layer(model), len(model.blocks)
    if wanted is None:
        return max(0, depth - 1)
    if not -depth <= wanted <= depth:
        raise ValueError(
            f"layer {wanted} is out of range: the model has layers 1 to {depth} (-1 is the last,"
            " 0 the embedded patches)"
        )
    count = wanted if wanted >= 0 else depth + 1 + wanted
    if count > last:
        raise ValueError(
            f"the patches that leave layer {count}, the last, do not reach CLS, which alone is read"
            f" out; use a layer from 0 (the embedded patches) to {last}"
        )
    return count
