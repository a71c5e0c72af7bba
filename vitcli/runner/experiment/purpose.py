"""Why an experiment is run: the fields of a file that change no training, and its comment."""

import re

from vitcli.core.spec import Spec
from vitcli.runner.errors import ConfigError
from vitcli.runner.experiment.yaml_text import Document


class Purpose(Spec):
    """The question and the hypothesis of an experiment or study.

    They belong to one file: a file does not take them from its base. They are no part of the
    configuration that a run stores, and of its hash.
    """

    question: str = ""
    """Question that the experiment or study answers, in one sentence."""
    hypothesis: str = ""
    """Result that is expected, stated before the first training."""


FILE_FIELDS = ("base", *Purpose.model_fields)
"""Fields of every experiment file that are no part of the experiment's spec."""


def read_purpose(document: Document) -> Purpose:
    given = {name: document.data.get(name) for name in Purpose.model_fields}
    for name, value in given.items():
        if not isinstance(value, str | None):
            where = document.where((name,))
            raise ConfigError(f"{where}: {name}: should be text; put it in quotes")
    return Purpose(**{name: value for name, value in given.items() if value is not None})


ENTRY = re.compile(r"# (\w+):\s+(.*\S)")
CONTINUED = re.compile(r"#\s{2,}(.*\S)")
OF_THE_ORIGINAL = ("Run", "Cost", "Result", "Tuned", "Reading")
"""Entries that are true of one file only: its command, its cost, its results, the images on which
its settings were chosen, and the explanation."""


def without_results(text: str) -> str:
    """Return the text of a file without the entries that are true of this file only."""
    kept, dropping = [], False
    for line in text.splitlines(keepends=True):
        if match := ENTRY.fullmatch(line.rstrip()):
            dropping = match[1] in OF_THE_ORIGINAL
        elif not CONTINUED.fullmatch(line.rstrip()):
            dropping = False
        if not dropping:
            kept.append(line)
    return "".join(kept)
