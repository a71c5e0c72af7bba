"""A few test images to explore by hand."""

import torch

from vitcli.core.models.vit import VisionTransformer
from vitcli.runner.errors import InputError
from vitcli.runner.visualize.explorer.explore import MAX_BYTES, attention_bytes
from vitcli.runner.visualize.explorer.scene import Scene, make_scene
from vitcli.runner.visualize.run_on_test_set import NoFigureError, RunOnTestSet

CHOSEN = 4


def scenes(subject: RunOnTestSet) -> list[Scene]:
    """The first test image of each of the first classes, as scenes of the explorer.

    Raises:
        NoFigureError: The model has no attention, or too much of it for a page.
    """
    model = subject.attending
    index = subject.firsts[: room(model)]
    if not index:
        raise NoFigureError("one picture's attention would be too large for a page")
    try:
        return [scene(subject, model, i) for i in index]
    except InputError as error:
        raise NoFigureError(str(error)) from error


def room(model: VisionTransformer) -> int:
    """So many pictures fit on a page, ``CHOSEN`` at most."""
    return min(CHOSEN, MAX_BYTES // attention_bytes(model, len(model.blocks)))


def scene(subject: RunOnTestSet, model: VisionTransformer, index: int) -> Scene:
    picture = subject.picture(index)
    label = subject.predictor.names[int(subject.data.test.labels[index])]
    return make_scene(
        model,
        subject.batch(torch.tensor([index])),
        name=f"{label}, test image {index}",
        picture=picture,
        box=(0, 0, *picture.shape[:2]),
        class_names=subject.predictor.names,
    )
