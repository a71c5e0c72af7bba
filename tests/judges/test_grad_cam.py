"""Judge: pytorch-grad-cam. It decides the Grad-CAM maps of the bundled model, by layer.

The package scales each map to 0 ... 1 and enlarges it to the size of the picture by bilinear
interpolation; vitcli does neither. Here our map gets both before it is compared. The layer must be
named: the package has no default for a ViT, and its pages propose the first norm of the last block,
which is our default.
"""

from typing import Any

import pytest
import torch.nn.functional as F

from tests.judges.conftest import Judge
from tests.plugins.explain.made_up import bundled
from vitcli.core.inspect.grad_cam import grad_cam

JUDGE = Judge("grad-cam", "MIT", "Grad-CAM", "pytorch_grad_cam")
pytestmark = [pytest.mark.judge, pytest.mark.usefixtures("here")]

POINTS = (slice(None), slice(1, None, 4), slice(1, None, 4))


@pytest.mark.parametrize("layer", [0, 1, 2, 3, 4])
def test_maps_of_the_bundled_model_are_those_of_grad_cam(agree, layer):
    subject = bundled()
    model, images = subject.model, subject.batch
    ours = grad_cam(model, images, layer=layer)

    def theirs() -> Any:
        from pytorch_grad_cam import GradCAM

        def by_place(tokens: Any) -> Any:
            patches = tokens[:, model.num_prefix_tokens :]
            return patches.unflatten(1, model.grid_size).movedim(-1, 1)

        with GradCAM(model, [model.blocks[layer].attn.norm], by_place) as cam:
            return cam(images, None)[POINTS]

    large = F.interpolate(ours[None], size=images.shape[-2:], mode="bilinear")[0]
    scaled = (large - large.min()) / (large.max() - large.min())
    agree(f"Grad-CAM of layer {layer}, a point in each patch", scaled[POINTS], theirs)
