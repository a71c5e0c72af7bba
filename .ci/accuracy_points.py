"""Accuracy against compute on CIFAR-10: the points, their table and their figure.

experiments/results/accuracy-per-compute.json names our results and states the published ones.
"""

import json
from dataclasses import dataclass
from functools import cache

import torch
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from study_tables import RESULTS, document

from vitcli.core.inspect.cost import forward_flops
from vitcli.core.models.image_model import build_model
from vitcli.core.spec import ExperimentSpec
from vitcli.runner.data.load import describe_data
from vitcli.runner.experiment.config import load_experiment
from vitcli.runner.experiment.resolve import fit_to_data
from vitcli.runner.figure_style import (
    BLUE,
    FAINT,
    GREEN,
    SMALL_SIZE,
    VERMILION,
    add_legend_beside,
    add_source,
    add_title,
)
from vitcli.runner.report.tables import markdown_grid
from vitcli.runner.study.definition import load_study
from vitcli.runner.study.statistics import compare

FILE = RESULTS / "accuracy-per-compute.json"
NUM_TRAIN = 50_000
PILOTS = RESULTS.parent / "pilots"
PILOTED = ("cifar10-convnet", "cifar10-pocket", "speedrun-94", "cifar10-plain", "cifar10-hybrid")
KINDS = {"plain ViT": GREEN, "hybrid": BLUE, "convolutional": VERMILION}
PLACES = {
    "airbench94_muon": (0, 15, "center"),
    "airbench94": (3, 4, "left"),
    "airbench95": (7, -3, "left"),
    "airbench96_faster": (-7, -3, "right"),
    "cifar10-convnet": (-7, -6, "right"),
    "cifar10-convnet-short": (0, -13, "center"),
    "cifar10-hybrid-short": (-24, -22, "left"),
    "study-distil/alone": (-7, 1, "right"),
    "study-distil/taught": (-7, -9, "right"),
    "ViT, 2.8 M": (7, -11, "left"),
    "ViT, 2.8 M, SPT + LSA": (-7, -3, "right"),
    "ViT, 2.8 M, after DINO": (-7, 6, "right"),
    "ResNet-18": (-7, -3, "right"),
    "CCT-7/3x1, 300 epochs": (-5, 6, "left"),
}
"""Label -> its offset in points and its alignment, where it would cover another on the right."""
RIGHT = (7, -3, "left")


@dataclass(frozen=True, kw_only=True)
class Point:
    """An accuracy and the compute of all trainings that it took."""

    name: str
    kind: str
    pflop: float
    accuracy: float | None = None
    """Of each test image as it is, in percent."""
    tta: float | None = None
    """With the six views of ``vitcli eval --tta shift``, in percent."""
    epoch: str
    """``last``, or ``best`` if the test images chose it."""
    n: str
    source: str
    sd: float | None = None
    is_ours: bool = False


def pflop(name: str, teacher: str | None = None) -> float:
    """Return the compute of a shipped experiment: 6 x multiply-adds x images seen.

    The forward passes of a teacher are counted, its training is not.
    """
    spec, operations = _forward(name)
    epochs, passes = spec.train.epochs, 3 * operations * spec.train.epochs
    if teacher:
        passes += _forward(teacher)[1] * min(epochs, spec.data.augment.copies or epochs)
    return passes * NUM_TRAIN / 1e15


def _forward(name: str) -> tuple[ExperimentSpec, int]:
    """Return a shipped experiment or variant, and the operations of a forward pass of an image."""
    study, _, variant = name.partition("/")
    if variant:
        spec = next(each.spec for each in load_study(study).variants if each.name == variant)
    else:
        spec = load_experiment(name).spec
    spec = fit_to_data(spec, describe_data(spec.data))
    with torch.device("meta"):
        model = build_model(spec.model)
    return spec, forward_flops(model, model.image_shape)


def our_point(
    result: str, trainings: list[str], kind: str, tta: float | None = None, measured: str = ""
) -> Point:
    """Return the point of a row of a committed result.

    Args:
        result: Name of the result.
        trainings: The experiment, or STUDY/VARIANT for another row than the baseline's, after the
            experiment of a teacher if it has one. Their compute is added.
        kind: A key of ``KINDS``.
        tta: Accuracy with test-time augmentation, in percent.
        measured: The command that measures it.
    """
    *teachers, own = trainings
    rows, variant = compare(document(result)), own.partition("/")[2]
    row = next(row for row in rows if row.variant == variant) if variant else rows[0]
    assert row.score_mean is not None
    return Point(
        name=own,
        kind=kind,
        pflop=pflop(own, *teachers) + sum(map(pflop, teachers)),
        accuracy=row.score_mean,
        tta=tta,
        sd=row.score_sd,
        epoch="last",
        n=str(row.n),
        source=f"vitcli, {' after '.join(f'`{name}`' for name in reversed(trainings))}"
        + (f"; `{measured}`" if measured else ""),
        is_ours=True,
    )


@cache
def points() -> tuple[Point, ...]:
    """Return all points in the order of their compute."""
    found = json.loads(FILE.read_text())
    ours = [our_point(**each) for each in found["ours"]]
    published = [Point(**each) for each in found["published"]]
    return tuple(sorted([*ours, *published], key=lambda point: point.pflop))


def accuracy_table() -> str:
    """Return the table of all points."""
    rows = [
        [
            f"**{point.name}**" if point.is_ours else point.name,
            point.kind,
            f"{point.pflop:.3g}",
            "-" if point.accuracy is None else f"{point.accuracy:.2f}{_spread(point)}",
            "-" if point.tta is None else f"{point.tta:.2f}",
            point.epoch,
            point.n,
            point.source,
        ]
        for point in points()
    ]
    header = ["model", "kind", "PFLOP", "accuracy, %", "with TTA, %", "epoch", "n", "source"]
    return markdown_grid(header, rows, (2, 3, 4, 6))


def _spread(point: Point) -> str:
    return "" if point.sd is None else f" +- {point.sd:.2f}"


def pilots_table() -> str:
    """Return the table of the pilots of the experiments, in the order in which they ran."""
    rows = [
        [
            f"`{name}`",
            ", ".join(f"`{change}`" for change in line["changes"]) or "-",
            f"{line['pflop']:.3f}" if "pflop" in line else "-",
            "diverged" if line["val_accuracy"] is None else f"{100 * line['val_accuracy']:.1f}",
            line.get("commit", "-")[:9],
        ]
        for name in PILOTED
        for line in map(json.loads, (PILOTS / f"{name}.jsonl").read_text().splitlines())
    ]
    return markdown_grid(["experiment", "changes", "PFLOP", "accuracy, %", "commit"], rows, (2, 3))


def stopped_pilots_table() -> str:
    """Return the table of the pilots that did not end, at epochs that most of them reached."""
    rows = []
    for line in map(json.loads, (PILOTS / "speedrun-94-stopped.jsonl").read_text().splitlines()):
        at = {each["epoch"]: each for each in line["curve"]}
        found = [
            f"{100 * at[epoch][key]:.1f}" if epoch in at else "-"
            for epoch in (40, 50)
            for key in ("train_accuracy", "val_accuracy")
        ]
        changes = ", ".join(f"`{change}`" for change in line["changes"]) or "-"
        rows.append([changes, f"{line['last_epoch']} of {line['epochs']}", *found])
    header = ["changes", "epochs"]
    header += [f"{of}, epoch {epoch}, %" for epoch in (40, 50) for of in ("training", "validation")]
    return markdown_grid(header, rows, range(1, 6))


def accuracy_figure() -> Figure:
    """Draw accuracy against compute; a hollow point was chosen among epochs by the test images."""
    figure = Figure(figsize=(9, 4.8), layout="constrained")
    axes = figure.subplots()
    for point in points():
        colour, face = KINDS[point.kind], "white" if point.epoch == "best" else KINDS[point.kind]
        marker = "D" if point.is_ours else "o"
        if point.accuracy is not None:
            axes.plot(point.pflop, point.accuracy, marker, color=colour, mfc=face, markersize=5)
        if point.tta is not None:
            axes.plot(point.pflop, point.tta, "^", color=colour, markersize=5)
        across, up, side = PLACES.get(point.name, RIGHT)
        axes.annotate(
            point.name,
            (point.pflop, point.tta if point.accuracy is None else point.accuracy),
            (across, up),
            textcoords="offset points",
            ha=side,
            fontsize=SMALL_SIZE,
            fontweight="bold" if point.is_ours else "normal",
        )
    axes.set_xscale("log")
    axes.set_xticks([0.1, 1, 10, 100], ["0.1", "1", "10", "100"])
    axes.set_xlim(0.1, 800)
    axes.grid(color=FAINT, linewidth=0.6)
    axes.set_xlabel("PFLOP of all trainings (logarithmic)")
    axes.set_ylabel("accuracy on the test images, %")
    marks = [
        *(Line2D([], [], color=c, marker="s", ls="", label=kind) for kind, c in KINDS.items()),
        Line2D([], [], color="k", marker="D", ls="", label="vitcli, last epoch"),
        Line2D([], [], color="k", marker="o", ls="", label="published, last"),
        Line2D(
            [], [], color="k", marker="o", ls="", markerfacecolor="white", label="published, best"
        ),
        Line2D([], [], color="k", marker="^", ls="", label="six views (TTA)"),
    ]
    add_legend_beside(axes, handles=marks)
    add_title(figure, "CIFAR-10 from scratch: accuracy against compute")
    add_source(figure, "6 x multiply-adds x images seen. Best epoch: chosen by the test images.")
    return figure
