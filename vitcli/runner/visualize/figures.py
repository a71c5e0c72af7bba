"""Every figure that ``vitcli visualize`` knows, by name."""

from collections.abc import Callable

from vitcli.runner.visualize.attention_figures import distance, faithfulness, heads, mistakes
from vitcli.runner.visualize.figure import RunFigure
from vitcli.runner.visualize.run_on_test_set import RunOnTestSet
from vitcli.runner.visualize.training_figures import confusion, curves
from vitcli.runner.visualize.weight_figures import embeddings, filters, pos_embed

FIGURES: dict[str, Callable[[RunOnTestSet], RunFigure]] = {
    "curves": curves,
    "confusion": confusion,
    "mistakes": mistakes,
    "heads": heads,
    "distance": distance,
    "pos-embed": pos_embed,
    "filters": filters,
    "embeddings": embeddings,
    "faithfulness": faithfulness,
}
