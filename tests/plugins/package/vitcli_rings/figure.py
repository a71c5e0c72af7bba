from matplotlib.figure import Figure

from vitcli.runner.evaluate.trained_run import TrainedRun
from vitcli.runner.visualize.figure import FigureRow, RunFigure, source_of


def sizes(tested: TrainedRun) -> RunFigure:
    numbers = {name: value.numel() for name, value in tested.module.named_parameters()}

    def draw() -> Figure:
        figure = Figure(figsize=(5, 3), layout="constrained")
        figure.add_subplot().barh([*numbers], [*numbers.values()])
        return figure

    return RunFigure(
        draw_axes=draw,
        title="Parameters of each layer",
        summary="Each bar is one tensor of the model.",
        source=source_of(tested),
        numbers=numbers,
    )


SIZES = FigureRow(make=sizes)
