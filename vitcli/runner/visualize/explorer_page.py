"""Scenes of a few test images for the explorer."""

import torch

from vitcli.core.models.vit import VisionTransformer
from vitcli.runner.errors import InputError
from vitcli.runner.evaluate.trained_run import NoFigureError, TrainedRun
from vitcli.runner.visualize.explorer.explore import MAX_BYTES, attention_bytes
from vitcli.runner.visualize.explorer.scene import Scene, make_scene

MAX_SCENES = 4


def make_scenes(tested: TrainedRun) -> list[Scene]:
    """Return the first test image of each of the first classes, as scenes of the explorer."""
    tested.require_classifier()
    model = tested.attention_model
    count = min(MAX_SCENES, MAX_BYTES // attention_bytes(model, len(model.blocks)))
    if not count:
        raise NoFigureError("the attention of one picture is too large for a page")
    try:
        return [_make_scene(tested, model, i) for i in tested.first_of_each_class[:count]]
    except InputError as error:
        raise NoFigureError(str(error)) from error


def _make_scene(tested: TrainedRun, model: VisionTransformer, index: int) -> Scene:
    picture = tested.picture(index)
    label = tested.class_names[int(tested.data.test.labels[index])]
    return make_scene(
        model,
        tested.batch(torch.tensor([index])),
        name=f"{label}, test image {index}",
        picture=picture,
        box=(0, 0, *picture.shape[:2]),
        class_names=tested.class_names,
        temperature=tested.temperature,
    )
