"""Every figure of ``vitcli visualize``, by name."""

from collections.abc import Callable

from vitcli.runner.visualize.attention_figures import heads_figure, mistakes_figure
from vitcli.runner.visualize.distance_figure import distance_figure
from vitcli.runner.visualize.faithfulness_figure import faithfulness_figure
from vitcli.runner.visualize.feature_figure import features_figure
from vitcli.runner.visualize.figure import RunFigure
from vitcli.runner.visualize.lens_figure import lens_figure
from vitcli.runner.visualize.run_on_test_set import RunOnTestSet
from vitcli.runner.visualize.training_figures import confusion_figure, curves_figure
from vitcli.runner.visualize.weight_figures import (
    embeddings_figure,
    filters_figure,
    positions_figure,
)

FIGURES: dict[str, Callable[[RunOnTestSet], RunFigure]] = {
    "curves": curves_figure,
    "confusion": confusion_figure,
    "mistakes": mistakes_figure,
    "heads": heads_figure,
    "logit-lens": lens_figure,
    "distance": distance_figure,
    "pos-embed": positions_figure,
    "filters": filters_figure,
    "embeddings": embeddings_figure,
    "features": features_figure,
    "faithfulness": faithfulness_figure,
}
