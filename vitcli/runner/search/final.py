"""The final stage of a search: a study of the base and the winner, the only one that tests.

Both are trained on the training and validation images with fresh seeds. The study is a file beside
the results, so that ``vitcli ablate`` can train and show it again.
"""

from pathlib import Path

from vitcli.runner.errors import ConfigError
from vitcli.runner.evaluate.teacher import with_teacher
from vitcli.runner.experiment.config import check, config_hash, flatten, override
from vitcli.runner.experiment.yaml_text import dump
from vitcli.runner.files import commit
from vitcli.runner.run.store import read_store
from vitcli.runner.search.definition import Search
from vitcli.runner.search.result import SearchResult
from vitcli.runner.study.definition import Study, load_study

FOLDER = "final"
BASE, WINNER = "base", "winner"


def load_final(
    search: Search, doc: SearchResult, root: Path, save: Path | None = None
) -> Study | None:
    """Write the study of the final stage beside the results; return it.

    It is None if the winner is the base itself.
    """
    assert doc.winner is not None
    assert search.fields.final is not None
    point = doc.winner.point
    if point == doc.base:
        return None
    changes = flatten(search.fields.final.changes) | {"data.val_split": 0}
    fields = override(search.raw, changes)
    own = config_hash(with_teacher(check(override(fields, point), search.places)))
    allowed = {(own, seed) for seed in search.fields.final.seeds}
    path = root / f"{search.name}-final.yaml"
    if path.exists() and (root / FOLDER).exists():
        earlier = load_study(str(path)).trials((WINNER,))
        if {(trial.config_hash, trial.spec.seed) for trial in earlier} != allowed:
            raise _tested(root / FOLDER)
    if save:
        folder = save / path.stem
        saved = [each for each in read_store(folder) if each.value["variant"] == WINNER]
        if not {(each.config_hash, each.seed) for each in saved} <= allowed:  # maybe not all yet
            raise _tested(folder)
    study = {
        "question": f"is the winner of the search {search.name} better than its base?",
        **{name: value for name, value in fields.items() if name != "seed"},
        "seeds": list(search.fields.final.seeds),
        "threads": search.threads,
        "variants": {BASE: {}, WINNER: dict(point)},
    }
    commit(path, dump(study).encode())
    return load_study(str(path))


def _tested(folder: Path) -> ConfigError:
    return ConfigError(
        f"{folder} has tested another winner, or this one with other settings or seeds; who has"
        " seen a test score must not choose again. Keep the search and its winner, or begin a new"
        " search with -o FOLDER, and with another --save FOLDER if you use one"
    )
