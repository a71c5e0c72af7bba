"""Faithfulness of each method's maps, beside two baselines: a random map and the picture's centre.

Axes: n images, S points of a curve, B batch, C channels, H W pixels, gh gw patch grid.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vitcli.core.inspect.faithfulness import (
    area,
    centre_map,
    deletion,
    insertion,
    random_maps,
    removal_counts,
)
from vitcli.core.inspect.grad_cam import feature_layer
from vitcli.core.inspect.maps import METHODS, MapRequest, grad_cam_map, head_maps
from vitcli.core.models.vit import VisionTransformer
from vitcli.runner.evaluate.trained_run import TrainedRun

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


RANDOM, CENTRE = "random", "centre"
BASELINES = (RANDOM, CENTRE)
SEED = 0


@dataclass(frozen=True, kw_only=True)
class MethodCurves:
    """Curves of one method over the share of patches, and the areas under them."""

    method: str
    deletion: Tensor
    """Probability of the likeliest class at temperature 1, (n, S)."""
    insertion: Tensor
    """Probability of the likeliest class, (n, S)."""
    deletion_area: Tensor
    """(n,); low is good."""
    insertion_area: Tensor
    """(n,); high is good."""

    @property
    def gap(self) -> Tensor:
        """Insertion area minus deletion area, (n,): 0 on average for a random map."""
        return self.insertion_area - self.deletion_area


@dataclass(frozen=True, kw_only=True)
class Faithfulness:
    """Curves of all methods on the same images."""

    shares: tuple[float, ...]
    """Share of the patches that are removed or inserted at each point."""
    methods: tuple[MethodCurves, ...]

    def method(self, name: str) -> MethodCurves:
        return next(each for each in self.methods if each.method == name)

    @property
    def best(self) -> MethodCurves:
        """The method with the largest mean gap, without the baselines."""
        return self.ranking[0]

    @property
    def ranking(self) -> list[MethodCurves]:
        """The methods without the baselines, the largest mean gap first."""
        methods = [each for each in self.methods if each.method not in BASELINES]
        return sorted(methods, key=lambda each: -each.gap.mean().item())


def measure_faithfulness(tested: TrainedRun) -> Faithfulness:
    """Return the deletion and insertion curves of all methods on the sampled images."""
    tested.require_classifier()
    model = tested.attention_model
    counts = removal_counts(model.grid_size[0] * model.grid_size[1])
    found: dict[str, list[tuple[Tensor, Tensor]]] = {
        name: [] for name in (*MAP_METHODS, *BASELINES)
    }
    for index, images in tested.batches(tested.sample):
        with torch.no_grad():
            classes = model(images).argmax(-1)
        every = maps_of_methods(model, images, classes) | _baselines(model, images, index)
        for name, maps in every.items():
            curves = [f(model, images, maps, classes, counts) for f in (deletion, insertion)]
            found[name].append((curves[0].cpu(), curves[1].cpu()))
    methods = []
    for name, parts in found.items():
        away, back = (torch.cat(side) for side in zip(*parts, strict=True))
        methods.append(
            MethodCurves(
                method=name,
                deletion=away,
                insertion=back,
                deletion_area=area(away, counts),
                insertion_area=area(back, counts),
            )
        )
    return Faithfulness(shares=tuple(c / counts[-1] for c in counts), methods=tuple(methods))


def _baselines(model: VisionTransformer, images: Tensor, index: Tensor) -> dict[str, Tensor]:
    """Return the maps of the baselines. A random map depends only on the index of its image."""
    grid = model.grid_size
    random = torch.cat([random_maps(1, grid, SEED + int(i)) for i in index])
    centre = centre_map(grid).expand(len(images), *grid)
    return {RANDOM: random.to(images.device), CENTRE: centre.to(images.device)}
