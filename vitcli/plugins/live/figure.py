"""The explorer about the first test images of a run, as a figure of `vitcli visualize`."""

import torch

from vitcli.plugins.live.explore import MAX_BYTES, attention_bytes
from vitcli.plugins.live.page import Scene, fragment, make_scene, page
from vitcli.runner.errors import InputError
from vitcli.runner.evaluate.trained_run import NoFigureError, TrainedRun
from vitcli.runner.visualize.figure import InteractiveFigure

MAX_SCENES = 4


def explorer_figure(tested: TrainedRun) -> InteractiveFigure:
    scenes = make_scenes(tested)
    explorer = fragment(scenes)
    return InteractiveFigure(
        title="Explore",
        page=page(scenes, about=f"Attention of {tested.name}"),
        markup=explorer.markup,
        style=explorer.style,
        script=explorer.script,
        note=f"The attention of every patch of {len(scenes)} test images, the first image of each"
        " of the first classes.",
    )


def make_scenes(tested: TrainedRun) -> list[Scene]:
    tested.require_classifier()
    model = tested.attention_model
    count = min(MAX_SCENES, MAX_BYTES // attention_bytes(model, len(model.blocks)))
    if not count:
        raise NoFigureError("the attention of one picture is too large for a page")
    scenes = []
    for index in tested.first_of_each_class[:count]:
        picture = tested.picture(index)
        label = tested.class_names[int(tested.data.test.labels[index])]
        try:
            scene = make_scene(
                model,
                tested.batch(torch.tensor([index])),
                name=f"{label}, test image {index}",
                picture=picture,
                box=(0, 0, *picture.shape[:2]),
                class_names=tested.class_names,
                temperature=tested.temperature,
            )
        except InputError as error:
            raise NoFigureError(str(error)) from error
        scenes.append(scene)
    return scenes
