"""The map of each method on the same images, for the checks of the maps.

Axes: B batch, C channels, H W pixels, gh gw patch grid.
"""

from dataclasses import replace

from torch import Tensor

from vitcli.core.inspect.grad_cam import feature_layer
from vitcli.core.inspect.maps import METHODS, MapRequest, grad_cam_map, head_maps
from vitcli.core.models.vit import VisionTransformer

ATTENTION, GRAD_CAM = "last layer", "gradcam"
MAP_METHODS = (ATTENTION, *(name for name in METHODS if name != "cls"))
"""The kinds of maps that are checked. The attention of the last layer stands for ``cls``, because
every model has it."""


def maps_of_methods(model: VisionTransformer, images: Tensor, classes: Tensor) -> dict[str, Tensor]:
    """Return the map (B, gh, gw) of each method, on the device of the images.

    Args:
        images: (B, C, H, W), normalised.
        classes: (B,) the class that the maps of a class explain.
    """
    request = MapRequest(
        model=model, images=images, layers=(len(model.blocks) - 1,), classes=classes
    )
    for_grad_cam = replace(request, layers=(feature_layer(model) - 1,))
    found = {
        ATTENTION: head_maps(request).mean((1, 2)),
        **{name: METHODS[name](request) for name in METHODS if name not in ("cls", GRAD_CAM)},
        GRAD_CAM: grad_cam_map(for_grad_cam),
    }
    return {name: maps.to(images.device) for name, maps in found.items()}
