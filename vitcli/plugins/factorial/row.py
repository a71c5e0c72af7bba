"""The row of the table of designs. No numpy, no figures."""

from vitcli.runner.study.design import Design

ROW = Design(
    cross="vitcli.plugins.factorial.crossing:cross_variants",
    table="vitcli.plugins.factorial.effects:build_effects",
    figure="vitcli.plugins.factorial.figure:interactions",
)
