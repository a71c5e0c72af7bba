"""ConvNet: its operations, fixed filters, initial weights, and the learning rate of its biases."""

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from vitcli.core.inspect.cost import forward_flops, parameters_by_part
from vitcli.core.models.convnet import BIAS_RATE, ConvNet, Norm, Whitening
from vitcli.core.models.image_model import build_model
from vitcli.core.randomness import keyed_generator
from vitcli.core.spec import OptimSpec, model_spec
from vitcli.core.train.optim import build_optimizers

WIDTHS = (64, 256, 256)
"""Widths of the network in the paper."""


def convnet(size: int = 16, widths: tuple[int, ...] = (32, 40)) -> ConvNet:
    sizes = {"img_size": (size, size), "in_chans": 3, "num_classes": 10}
    model = build_model(model_spec(family="convnet", **sizes, widths=widths), seed=0)
    assert isinstance(model, ConvNet)
    return model


def test_the_default_is_the_network_of_the_paper():
    """Parameters and operations of airbench94, whose 24 filters of 3x2x2 have biases too."""
    with torch.device("meta"):
        model = convnet(32, WIDTHS)
    assert model_spec(family="convnet").widths == WIDTHS
    channels, stages = (24, *WIDTHS), []
    total = 31 * 31 * 12 * 24
    for (before, after), side in zip(pairwise(channels), (31, 15, 7), strict=True):
        total += 9 * after * (side**2 * before + (side // 2) ** 2 * after)
        stages.append(9 * after * (before + after) + 2 * after)
    assert forward_flops(model, (3, 32, 32)) == 2 * (total + 256 * 10)
    assert [*parameters_by_part(model).values()] == [24, *stages, 2560]


@pytest.mark.parametrize("in_chans", [1, 3])
def test_the_fixed_filters_are_orthonormal_and_have_both_signs(in_chans):
    whitening = Whitening(in_chans)
    filters = whitening.filters.flatten(1)
    half = 4 * in_chans
    assert_close(filters[:half] @ filters[:half].T, torch.eye(half))
    assert_close(filters[half:], -filters[:half])
    assert "filters" not in whitening.state_dict()


def test_neighbouring_pixels_become_uncorrelated():
    """In smooth grey noise, a pixel resembles its neighbours; after the filters, none does."""
    noise = torch.randn(64, 1, 34, 34, generator=keyed_generator("noise"))
    smooth = F.avg_pool2d(noise, 3, stride=1)
    patches = F.unfold(smooth, 2).transpose(0, 1).flatten(1)
    filtered = F.conv2d(smooth, Whitening(1).filters[:4]).transpose(0, 1).flatten(1)
    largest = [(torch.corrcoef(x) - torch.eye(4)).abs().max() for x in (patches, filtered)]
    assert largest[0] > 0.6
    assert largest[1] < 0.05


def test_the_first_filters_copy_their_channel():
    conv = convnet().stages[1][0]
    x = torch.randn(2, 32, 5, 5)
    assert_close(conv(x)[:, :32], x)
    assert conv.weight[32:].std().item() == pytest.approx((9 * 32 * 3) ** -0.5, rel=0.05)


def test_biases_have_64_times_the_learning_rate():
    """A step of SGD with weight decay on a bias b = 8 p is one with the 64-fold rate on b."""
    norm = Norm(4).double().eval()
    torch.nn.init.normal_(norm.bias, generator=keyed_generator("bias"))
    bias = (8 * norm.bias).detach().requires_grad_()
    x = torch.randn(3, 4, 2, 2, dtype=torch.float64)
    spec = OptimSpec(name="sgd", lr=0.01, weight_decay=0.1, decay_all=True, momentum=0)
    (optimizer,) = build_optimizers(norm, spec)
    assert_close(norm(x), F.gelu(norm.norm(x) + bias[:, None, None]))
    norm(x).square().sum().backward()
    F.gelu(norm.norm(x) + bias[:, None, None]).square().sum().backward()
    optimizer.step()
    torch.optim.SGD([bias], lr=0.01 * BIAS_RATE, weight_decay=0.1 / BIAS_RATE).step()
    assert_close(8 * norm.bias, bias)


def test_the_smallest_images_leave_one_row():
    fields = {"family": "convnet", "in_chans": 3, "num_classes": 2, "widths": (4, 4, 4)}
    model = build_model(model_spec(img_size=(9, 20), **fields))
    assert model.forward_features(torch.randn(2, 3, 9, 20)).shape == (2, 4, 1, 2)
