"""The class predicted from each layer's features, with the final norm and head (logit lens).

Axes: n images, L layers, K classes.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.offsetbox import AnnotationBbox, OffsetImage
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from vitcli.core.inspect.heads import logits_by_layer
from vitcli.core.metrics.classification import wilson_interval
from vitcli.runner.evaluate.trained_run import TrainedRun
from vitcli.runner.figure_style import BLUE, DASHES, MUTED, VERMILION, bare, wrap_text
from vitcli.runner.text import one_line
from vitcli.runner.visualize.figure import RunFigure, source_of

EXAMPLES = 6
MAX_COLUMNS = 7
"""Largest number of layers whose classes are shown for each picture."""
PICTURE = 30
"""Height of a picture in points."""
NAME_WIDTH, BOLD_WIDTH = 0.84, 0.74
"""Largest widths of a class name in inches. They are measured in thin letters: bold gets less."""

Example = tuple[np.ndarray, list[tuple[str, float, bool]]]
"""A picture, and the class predicted from each layer: name, probability, whether it is right."""


@dataclass(frozen=True, kw_only=True)
class Lens:
    """The predictions from each layer; index 0 is for the embedded patches."""

    accuracy: list[tuple[float, float]]
    """Share of right classes after each layer in percent, and half of its Wilson 95 % interval."""
    agreement: list[float]
    """Share of images with the class of the last layer, in percent."""
    num_images: int

    @property
    def settled(self) -> int:
        """Return the layer from which on at least half of the images have their final class."""
        below = [i for i, share in enumerate(self.agreement) if share < 50]
        return below[-1] + 1 if below else 0


def lens_figure(tested: TrainedRun) -> RunFigure:
    tested.require_classifier()
    model, labels = tested.vit, tested.data.test.labels
    logits = torch.cat([logits_by_layer(model, x).cpu() for _, x in tested.batches(tested.sample)])
    lens = read_lens(logits, labels[tested.sample])
    index = torch.tensor(tested.first_of_each_class[:EXAMPLES])
    examined = logits_by_layer(model, tested.batch(index)) / tested.temperature
    shares = examined.softmax(-1).cpu()
    names = [one_line(name, 80) for name in tested.class_names]
    examples = []
    for i, by_layer in zip(index.tolist(), shares, strict=True):
        best, said = (values.tolist() for values in by_layer.max(-1))
        label = int(labels[i])
        predictions = [(names[k], share, k == label) for k, share in zip(said, best, strict=True)]
        examples.append((tested.picture(i), predictions))
    settled = lens.settled
    where = f"layer {settled}" if settled else "the embedded patches"
    return RunFigure(
        draw_axes=partial(_draw_lens, lens, examples),
        title="The class predicted from each layer's features",
        summary="Final norm, pooling and head of the whole model, applied after each layer; 0 is"
        f" for the embedded patches. From {where} on, at least half of the images have their final"
        " class.",
        details="The head was trained for the last layer only, so a low accuracy of an early layer"
        " does not mean that it knows nothing. The pictures are the first test image of their"
        " class.",
        source=source_of(tested, lens.num_images),
        numbers={
            "num_images": lens.num_images,
            "accuracy": [mean for mean, _ in lens.accuracy],
            "accuracy_ci95": [error for _, error in lens.accuracy],
            "agreement": lens.agreement,
        },
    )


def read_lens(logits: Tensor, labels: Tensor) -> Lens:
    """Return the numbers of a lens from logits (n, L + 1, K) and labels (n,)."""
    said = logits.argmax(-1)
    count = len(labels)
    right = (said == labels[:, None]).sum(0).tolist()
    intervals = [wilson_interval(number, count) for number in right]
    same = 100 * (said == said[:, -1:]).double()
    return Lens(
        accuracy=[
            (100 * number / count, 50 * (high - low))
            for number, (low, high) in zip(right, intervals, strict=True)
        ],
        agreement=same.mean(0).tolist(),
        num_images=count,
    )


def _draw_lens(lens: Lens, examples: list[Example]) -> Figure:
    layers = np.arange(len(lens.accuracy))
    shown = np.unique(np.linspace(0, layers[-1], MAX_COLUMNS).round().astype(int))
    size = 4.2 + len(shown), max(3.4, 0.5 * len(examples) + 0.9)
    figure = Figure(figsize=size, layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[3.4, len(shown) + 0.8])
    means = np.array([mean for mean, _ in lens.accuracy])
    errors = np.array([error for _, error in lens.accuracy])
    dots = {"color": BLUE, "marker": "o", "markersize": 4}
    left.errorbar(layers, means, errors, **dots, label="agrees with the true class")
    style = {"color": VERMILION, "linestyle": DASHES[1]}
    left.plot(layers, lens.agreement, **style, label="agrees with the model's final class")
    left.set(xlabel="after layer", ylabel="share of images, %", ylim=(0, 105))
    left.xaxis.set_major_locator(MaxNLocator(integer=True))
    left.legend(loc="lower left", bbox_to_anchor=(0, 1), frameon=False, fontsize=8)
    _draw_examples(right, examples, shown.tolist())
    return figure


def _draw_examples(axes: Axes, examples: list[Example], layers: list[int]) -> None:
    bare(axes)
    axes.set(xlim=(-0.8, len(layers)), ylim=(len(examples), -0.5))
    for column, layer in enumerate(layers):
        axes.text(column + 0.5, -0.2, str(layer), ha="center", fontsize=8)
    for row, (picture, predictions) in enumerate(examples):
        image = OffsetImage(picture, zoom=PICTURE / len(picture))
        axes.add_artist(AnnotationBbox(image, (-0.4, row + 0.5), frameon=False))
        for column, layer in enumerate(layers):
            name, share, is_right = predictions[layer]
            room = BOLD_WIDTH if is_right else NAME_WIDTH
            text = f"{wrap_text(name, room, 7, 2)}\n{100 * share:.0f} %"
            drawn = axes.text(column + 0.5, row + 0.5, text, ha="center", va="center", fontsize=7)
            drawn.set(color=BLUE if is_right else MUTED, weight="bold" if is_right else "normal")
    axes.set_title("class after each layer; the true one is bold", fontsize=8, loc="left")
