"""Designs besides one variant at a time; plugins add them."""

from dataclasses import dataclass

from vitcli.plugin import Registry, Target, missing_for
from vitcli.runner.errors import ConfigError

CROSSED = "factorial"
"""The design of a study with ``parts``."""


@dataclass(frozen=True, kw_only=True)
class Design:
    """What a design does at each step from the study file to the results."""

    cross: Target
    """Takes the variants of the file (name -> changed fields), ``tune`` and the places in the file;
    returns the variants to train."""
    table: Target
    """Takes a StudyResult; returns the second table of the results."""


DESIGNS = Registry[Design]("design")


def crossed_design(where: str = "") -> Design:
    """Return the design that crosses parts; ``where`` begins the error: ``a.yaml:4: ``."""
    if CROSSED not in DESIGNS:
        problem = missing_for(DESIGNS.field, CROSSED) or f"needs the plugin {CROSSED}"
        raise ConfigError(f"{where}design: {problem}")
    return DESIGNS[CROSSED]
