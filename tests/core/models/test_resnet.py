"""ResNet-18 equals torchvision except for the stem, and refuses fields of other families."""

from itertools import pairwise
from typing import Any

import pytest
import torch
import torchvision
from torch import nn
from torch.testing import assert_close

from tests.core.specs import REQUIRED
from vitcli.core.inspect.cost import (
    activation_bytes,
    forward_flops,
    parameters_by_part,
)
from vitcli.core.models.build import build_model
from vitcli.core.models.image_model import ImageModel
from vitcli.core.models.resnet import ResNet18
from vitcli.core.spec import FAMILIES, OptimSpec, model_spec
from vitcli.core.train.optim import build_optimizers

SPEC = model_spec(family="resnet18", img_size=(32, 32), in_chans=3, num_classes=10)
PARTS = {
    "stem": 1_856,
    "stage 1": 147_968,
    "stage 2": 525_568,
    "stage 3": 2_099_712,
    "stage 4": 8_393_728,
    "head": 5_130,
}


def resnet(**fields: Any) -> ResNet18:
    return ResNet18(SPEC.replace(**fields)).initialise()


def abstract(**fields: Any) -> ResNet18:
    """Return a model without memory for its weights."""
    with torch.device("meta"):
        return resnet(**fields)


def test_parameters_belong_to_stem_stages_and_head():
    assert parameters_by_part(abstract()) == PARTS
    assert list(parameters_by_part(abstract())) == list(PARTS)


@pytest.mark.parametrize("size", [(32, 32), (8, 8)])
def test_operations_equal_the_closed_form(size):
    """Each stage after the first halves the sides, doubles the width and has a 1x1 shortcut."""
    places, widths = size[0] * size[1], (64, 64, 128, 256, 512)
    total = places * 9 * 3 * 64
    for stage, (before, width) in enumerate(pairwise(widths)):
        places //= 4 if stage else 1
        shortcut = before * width if stage else 0
        total += places * (9 * before * width + 3 * 9 * width * width + shortcut)
    model = abstract(img_size=size)
    assert forward_flops(model, (3, *size)) == 2 * (total + 512 * 10)
    assert activation_bytes(model, (3, *size)) > 0


def plain_torchvision(ours: ResNet18, maxpool: nn.Module) -> nn.Module:
    """Return torchvision's resnet18 with the same stem and the weights of ``model``."""
    theirs = torchvision.models.resnet18(weights=None, num_classes=10)
    theirs.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
    theirs.maxpool = maxpool
    weights = zip(theirs.state_dict(), ours.state_dict().values(), strict=True)
    theirs.load_state_dict(dict(weights))
    return theirs.double()


@pytest.mark.parametrize("training", [False, True])
def test_logits_and_gradients_equal_torchvision(training):
    ours = resnet().double()
    for name, buffer in ours.named_buffers():
        if buffer.is_floating_point():
            buffer.add_(torch.rand_like(buffer) * (1 if "var" in name else 0.1))
    theirs = plain_torchvision(ours, nn.Identity())
    images = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    logits = [model.train(training)(images) for model in (ours, theirs)]
    assert_close(logits[0], logits[1])
    for each in logits:
        each.square().sum().backward()
    pairs = zip(ours.parameters(), theirs.parameters(), strict=True)
    assert all(torch.allclose(one.grad, other.grad) for one, other in pairs)
    for one, other in zip(ours.buffers(), theirs.buffers(), strict=True):
        assert_close(one, other)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("shape", [(3, 12, 12), (3, 16, 20), (1, 16, 16)])
def test_images_of_another_size_are_refused(family, shape):
    sizes: dict[str, Any] = {"img_size": (16, 16), "in_chans": 3, "num_classes": 2}
    model = build_model(model_spec(family=family, **sizes, **REQUIRED[family]))
    wanted = "the model takes images of 3x16x16 .*, got {}x{}x{}".format(*shape)
    with pytest.raises(ValueError, match=wanted):
        model(torch.randn(2, *shape))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_family_provides_what_the_runner_needs(family):
    sizes: dict[str, Any] = {"img_size": (16, 8), "in_chans": 2, "num_classes": 7}
    spec = model_spec(family=family, **sizes, **REQUIRED[family])
    model = build_model(spec)
    assert isinstance(model, ImageModel)
    assert (model.spec, model.image_shape, model.num_classes) == (spec, (2, 16, 8), 7)
    assert [name for name, _ in model.head.named_parameters()]
    assert model(torch.randn(3, 2, 16, 8)).shape == (3, 7)
    for name in ("img_size", "in_chans", "num_classes"):
        with pytest.raises(ValueError, match="must be set"):
            build_model(spec.replace(**{name: None}))


def test_weight_decay_covers_filters_and_head_only():
    model = abstract()
    (optimizer,) = build_optimizers(model, OptimSpec(name="sgd", weight_decay=0.1))
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    decayed, kept = ({names[id(p)] for p in group["params"]} for group in optimizer.param_groups)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0]
    convs = {f"{n}.weight" for n, m in model.named_modules() if isinstance(m, nn.Conv2d)}
    assert decayed == convs | {"head.weight"}
    assert decayed | kept == set(names.values())
