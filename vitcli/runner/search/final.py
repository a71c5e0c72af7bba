"""The final stage of a search: a study of the base and the winner, the only one that tests.

Both are trained on the training and validation images with fresh seeds. The study is a file beside
the results, so that ``vitcli ablate`` can train and show it again.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitcli.runner.errors import ConfigError
from vitcli.runner.experiment.config import flatten, override
from vitcli.runner.experiment.yaml_text import dump, read_mapping
from vitcli.runner.files import commit
from vitcli.runner.search.definition import Search
from vitcli.runner.search.result import SearchResult
from vitcli.runner.study.definition import Study, load_study
from vitcli.runner.study.saved import read_saved

FOLDER = "final"
BASE, WINNER = "base", "winner"


def final_fields(search: Search, point: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the study of the final stage."""
    final = search.fields.final
    assert final is not None
    fields = override(search.raw, flatten(final.changes) | {"data.val_split": 0})
    fields.pop("seed", None)
    return {
        "question": f"is the winner of the search {search.name} better than its base?",
        **fields,
        "seeds": list(final.seeds),
        "threads": search.threads,
        "variants": {BASE: {}, WINNER: dict(point)},
    }


def write_final(search: Search, doc: SearchResult, root: Path) -> Path:
    """Write the study of the final stage beside the results; return its path.

    Raises:
        ConfigError: The test images have been read for another winner, so that this search must
            not choose again.
    """
    assert doc.winner is not None
    path = root / f"{search.name}-final.yaml"
    fields = final_fields(search, doc.winner.point)
    if path.exists() and (root / FOLDER).exists():
        earlier = read_mapping(path).data.get("variants", {}).get(WINNER)
        if earlier != fields["variants"][WINNER]:
            raise _tested(root / FOLDER)
    commit(path, dump(fields).encode())
    return path


def _refuse_other_winner(study: Study, save: Path) -> None:
    own = {trial.config_hash for trial in study.trials() if trial.variant == WINNER}
    folder = save / study.name / WINNER
    saved = map(read_saved, sorted(folder.glob("*.json")))
    if any(record and record.config_hash not in own for record in saved):
        raise _tested(folder)


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
        ConfigError: Another winner was tested, here or in the saved final stage in ``save``.
    """
    winner = doc.winner
    assert winner is not None
    if winner.point == doc.base:
        return None
    path = root / f"{search.name}-final.yaml"
    before = path.read_bytes() if path.exists() else None
    study = load_study(str(write_final(search, doc, root)))
    try:
        if save:
            _refuse_other_winner(study, save)
    except ConfigError:
        path.unlink() if before is None else path.write_bytes(before)
        raise
    return study
