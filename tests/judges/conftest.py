"""Each file here compares vitcli with a judge: a program or a published table of others.

``figures.json`` keeps all answers, for docs/results/judged.md and machines without it.
With the judges installed, ``VITCLI_JUDGES=write pytest -n 0 -m "" tests/judges`` writes it.
"""

import json
import os
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

FIGURES = Path(__file__).parent / "figures.json"
KEPT = 64
"""Most numbers of an answer that are stored."""


class Judge(NamedTuple):
    """A program or table that nobody of this project wrote; a test file has one as ``JUDGE``."""

    name: str
    licence: str
    decides: str
    package: str | None = None
    """The module that is imported; None if the answers are in the file."""
    of: str | None = None
    """Version of what has no package; by default, the version of the package ``name``."""

    def is_here(self) -> bool:
        return self.package is None or find_spec(self.package) is not None


def numbers(value: Any) -> Any:
    found = np.asarray(value, dtype=float)
    if found.size > KEPT:
        return None
    rounded = [float(f"{each:.12g}") for each in found.flatten()]
    return rounded if found.ndim else rounded[0]


def difference(ours: Any, theirs: Any) -> float:
    """Return the largest difference, as a share of the largest number of the judge."""
    ours, theirs = (np.asarray(each, dtype=float) for each in (ours, theirs))
    assert ours.size == theirs.size
    found = np.abs(ours.flatten() - theirs.flatten()).max() / (np.abs(theirs).max() or 1.0)
    return float(f"{found:.2g}")


@pytest.fixture
def agree(request) -> Callable[..., None]:
    """Return a function that compares numbers of vitcli with those of the file's judge.

    Its arguments are what is compared, the two answers, and the largest difference allowed, as a
    share of the judge's largest number. The judge's answer may be a function that calls it. On a
    machine without the judge, the stored answer stands for it.
    """
    judge: Judge = request.module.JUDGE

    def compare(what: str, ours: Any, theirs: Any, within: float = 1e-5) -> None:
        stored = json.loads(FIGURES.read_text())
        kept = stored.get(judge.name, {"figures": {}})
        if not judge.is_here():
            theirs = kept["figures"][what]["theirs"]
            if theirs is None:
                pytest.skip(f"{judge.name} is not installed, and its answer is too long to store")
            request.node.user_properties.append(("not installed", judge.name))
        elif callable(theirs):
            theirs = theirs()
        found = difference(ours, theirs)
        assert found <= within, f"{what}: {numbers(ours)}, and {judge.name} says {numbers(theirs)}"
        figure = {
            "ours": numbers(ours) if np.ndim(ours) == 0 else None,
            "theirs": numbers(theirs),
            "count": int(np.asarray(theirs).size),
            "difference": found,
            "within": within,
        }
        if os.environ.get("VITCLI_JUDGES") == "write":
            stored[judge.name] = {
                "version": judge.of or version(judge.name),
                "licence": judge.licence,
                "decides": judge.decides,
                "figures": {**kept["figures"], what: figure},
            }
            FIGURES.write_text(json.dumps(stored, indent=1, sort_keys=True) + "\n")
        elif figure["theirs"] is not None:
            assert difference(theirs, kept["figures"][what]["theirs"]) <= max(within, 1e-5)

    return compare
