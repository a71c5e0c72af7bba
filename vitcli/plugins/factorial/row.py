"""The rows of the plugin. No numpy, no figures."""

from vitcli.runner.study.design import Design
from vitcli.runner.study.result import FigureRow

ROW = Design(
    cross="vitcli.plugins.factorial.crossing:cross_variants",
    table="vitcli.plugins.factorial.effects:build_effects",
)
EFFECTS = FigureRow(
    "Main effects on the diagonal, interactions of two parts below it, each with its 95 %"
    " interval. An effect in bold exists.",
    "vitcli.plugins.factorial.figure:interactions",
)
