"""The explorer's page about one picture and one run's model."""

from pathlib import Path

import torch

from vitcli.core.models.image_model import MappedModel
from vitcli.core.nn.attention import NoMapError
from vitcli.plugins.live import page as pages
from vitcli.runner.attn_map.explain import Explainer, Explanation
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.evaluate.trained_run import NoFigureError, TrainedRun
from vitcli.runner.text import printable
from vitcli.runner.visualize.figure import InteractiveFigure

MAX_BYTES = 32 * 2**20
"""Largest size of the attention in one page. 12 layers of 12 heads over 197 tokens need 8 MiB; 24
layers of 16 heads over 577 tokens need 174 MiB, which is too slow in a browser."""
MAX_SCENES = 4


class Explorer:
    """Writer of explorer pages for one model."""

    def __init__(self, explainer: Explainer, *, all_layers: bool) -> None:
        model = explainer.model
        if not model.has_attention_weights:
            name = repr(getattr(model.spec, "attention", model.spec.family))
            raise ConfigError(f"attention {name} has no attention matrix; leave out --format html")
        self.explainer = explainer
        self.layers = tuple(range(len(model.blocks))) if all_layers else explainer.layers
        if attention_bytes(model, len(self.layers)) > MAX_BYTES:
            raise ConfigError(
                f"--format html: the attention needs more than {MAX_BYTES >> 20} MiB; name fewer"
                " layers, such as --layer -1, or use --format png or npz"
            )

    def page(self, explanation: Explanation) -> bytes:
        predictor, path = self.explainer.predictor, explanation.path
        try:
            scene = pages.make_scene(
                self.explainer.model,
                explanation.batch,
                name=printable("stdin" if path == "-" else Path(path).name),
                picture=explanation.picture,
                box=explanation.box,
                class_names=predictor.names if self.explainer.classifies else (),
                temperature=predictor.temperature,
                layers=self.layers,
            )
        except NoMapError as error:
            raise ConfigError(f"--format html: {error}") from error
        about = f"Attention of {predictor.run.name}, {predictor.origin}"
        return pages.page([scene], about=about)


def attention_bytes(model: MappedModel, num_layers: int) -> int:
    """Return the bytes in base64 of one picture's attention: one a weight, four a row's maximum."""
    height, width = model.grid_size
    tokens = model.num_prefix_tokens + height * width
    rows = num_layers * (model.num_heads + 1) * (tokens + 1)
    return rows * (tokens + 4) * 4 // 3


def explorer_figure(tested: TrainedRun) -> InteractiveFigure:
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
            scene = pages.make_scene(
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
    explorer = pages.fragment(scenes)
    return InteractiveFigure(
        title="Explore",
        page=pages.page(scenes, about=f"Attention of {tested.name}"),
        **vars(explorer),
        note=f"The attention of every patch of {len(scenes)} test images, the first image of each"
        " of the first classes.",
    )
