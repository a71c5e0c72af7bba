"""The final stage of a search: a study of the base and the winner, the only one that tests.

Both are trained on the training and validation images with fresh seeds. The study is a file beside
the results, so that ``vitcli ablate`` can train and show it again.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitcli.runner.errors import ConfigError
from vitcli.runner.experiment.config import check, config_hash, flatten, override
from vitcli.runner.experiment.yaml_text import dump
from vitcli.runner.files import commit
from vitcli.runner.run.store import read_store
from vitcli.runner.search.definition import Search
from vitcli.runner.search.result import SearchResult
from vitcli.runner.study.definition import Study, load_study

FOLDER = "final"
BASE, WINNER = "base", "winner"


def final_fields(search: Search, point: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the study of the final stage."""
    assert search.fields.final is not None
    fields = _base_fields(search)
    fields.pop("seed", None)
    return {
        "question": f"is the winner of the search {search.name} better than its base?",
        **fields,
        "seeds": list(search.fields.final.seeds),
        "threads": search.threads,
        "variants": {BASE: {}, WINNER: dict(point)},
    }


def _base_fields(search: Search) -> dict[str, Any]:
    assert search.fields.final is not None
    return override(search.raw, flatten(search.fields.final.changes) | {"data.val_split": 0})


def write_final(search: Search, doc: SearchResult, root: Path, save: Path | None = None) -> Path:
    """Write the study of the final stage beside the results; return its path.

    Raises:
        ConfigError: The test images have been read for another winner or with other settings, here
            or in the saved final stage in ``save``, so that this search must not choose again.
    """
    assert doc.winner is not None
    point = doc.winner.point
    own = config_hash(check(override(_base_fields(search), point), search.places))
    path = root / f"{search.name}-final.yaml"
    if path.exists() and (root / FOLDER).exists():
        earlier = load_study(str(path)).trials()
        if any(trial.variant == WINNER and trial.config_hash != own for trial in earlier):
            raise _tested(root / FOLDER)
    if save:
        folder = save / path.stem
        saved = [each for each in read_store(folder) if each.value["variant"] == WINNER]
        if any(each.config_hash != own for each in saved):
            raise _tested(folder)
    commit(path, dump(final_fields(search, point)).encode())
    return path


def _tested(folder: Path) -> ConfigError:
    return ConfigError(
        f"{folder} has tested another winner, or this one with other settings; who has seen a test"
        " score must not choose again. Keep the search and its winner, or begin a new search with"
        " -o FOLDER, and with another --save FOLDER if you use one"
    )


def load_final(
    search: Search, doc: SearchResult, root: Path, save: Path | None = None
) -> Study | None:
    """Return the study of the final stage; None if the winner is the base itself.

    Raises:
        ConfigError: As ``write_final``.
    """
    assert doc.winner is not None
    if doc.winner.point == doc.base:
        return None
    return load_study(str(write_final(search, doc, root, save)))
