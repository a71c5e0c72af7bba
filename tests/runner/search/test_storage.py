"""The journal of a search: it survives a kill at any byte, moves to another machine, and damage
to it is one line."""

import copy
import json
import os
import random
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.runner.search import made_up
from tests.runner.search.made_up import Engine, asked, make_objective, search_all, write_search
from vitcli.runner.errors import ConfigError, InputError, UserError
from vitcli.runner.search.definition import load_search
from vitcli.runner.search.objective import Objective
from vitcli.runner.search.result import SearchResult, make_result
from vitcli.runner.search.storage import Place
from vitcli.runner.search.trial import RESULT
from vitcli.runner.study.plan import Options

COMMITTED = Path(__file__).parents[3] / "experiments/search"
SAMPLERS: dict[str, dict[str, Any]] = {
    "random": {},
    "grid": {},
    "evolution": {"population": 5, "sample_size": 3},
    "tpe": {},
    "nsga2": {"population": 4, "cost": "parameters"},
}


@pytest.fixture
def move(monkeypatch) -> Callable[[str], None]:
    """Return what moves to another machine: there is no journal in the folder and no run folder."""

    def to(name: str) -> None:
        monkeypatch.setattr(made_up, "ROOT", Path(name))
        Engine.trained.clear()
        Engine.cancelled.clear()

    return to


@pytest.mark.parametrize(
    ("sampler", "pruning"),
    [
        *(("random", "none"), ("grid", "none"), ("tpe", "median"), ("evolution", "halving")),
        ("nsga2", "none"),
    ],
)
def test_a_search_continues_elsewhere_as_it_would_have_here(made, move, tmp_path, sampler, pruning):
    fields = {"sampler": sampler, "pruning": pruning} | SAMPLERS[sampler]
    Engine.behave = staticmethod(lambda spec: "diverged" if spec.model.depth == 1 else "finished")
    whole = search_all(trials=16, **fields)
    states = [result.state for result in whole.results.values()]
    assert ("pruned" in states) == (pruning != "none")
    move("second")
    search_all(save=tmp_path / "saved", trials=12, **fields)
    move("third")
    objective = search_all(save=tmp_path / "saved", trials=16, **fields)
    assert objective.results == whole.results
    assert asked(objective) == asked(whole)
    assert len(Engine.trained) == 4
    assert make_result(objective) == make_result(whole)


@pytest.mark.parametrize("sampler", ["evolution", "tpe"])
def test_after_a_kill_at_any_byte_a_search_asks_for_the_same_points(made, move, sampler):
    fields = {"sampler": sampler, "pruning": "median", "trials": 12} | SAMPLERS[sampler]
    whole = search_all(**fields)
    content = whole.place.journal.read_bytes()
    for i in (1, 4, 7):
        move(f"machine{i}")
        Path(f"machine{i}").mkdir()
        cut = content[: len(content) * i // 8 + i]
        (Path(f"machine{i}") / whole.place.journal.name).write_bytes(cut)
        again = search_all(**fields)
        assert asked(again) == asked(whole)
        assert again.results == whole.results


def test_the_journal_of_a_search_without_save_is_taken_along(made, tmp_path):
    first = search_all(trials=4)
    first.place.journal.with_name(f"{first.place.journal.name}.lock").touch()  # of a killed process
    assert search_all(trials=4).results == first.results
    assert search_all(trials=4, save=tmp_path / "saved").results == first.results
    assert len(Engine.trained) == 4


def test_without_the_folder_of_its_results_a_search_is_not_trained_again(made, tmp_path):
    saved = tmp_path / "my saved"
    search_all(save=saved, trials=4)
    with pytest.raises(ConfigError, match=f"add --save {shlex.quote(str(saved))}"):
        make_objective(trials=4)


def test_saved_results_in_another_precision_are_refused_and_kept(made, tmp_path):
    path = search_all(save=tmp_path / "saved", trials=4).place.journal
    content = path.read_text().replace('"precision":null', '"precision":"tf32"')
    path.write_text(content)
    with pytest.raises(ConfigError, match="tf32"):
        make_objective(save=tmp_path / "saved", trials=6)
    assert path.read_text() == content


def make_other(make: Callable[[Path], object]) -> Callable[[Path], object]:
    """Return a change that puts something else in the place of a file."""

    def change(path: Path) -> None:
        path.unlink()
        make(path)

    return change


def replace(old: str, new: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(path.read_text().replace(old, new))


def result(**fields: Any) -> Callable[[Path], object]:
    """Return a change of each result in a journal."""

    def change(path: Path) -> None:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            if RESULT in line.get("user_attr", {}):
                line["user_attr"][RESULT].update(fields)
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))

    return change


DAMAGE: dict[str, Callable[[Path], object]] = {
    "pipe": make_other(os.mkfifo),
    "folder": make_other(os.mkdir),
    "sparse": lambda path: os.truncate(path, 1 << 40),
    "noise": lambda path: path.write_bytes(os.urandom(300) + b"\n" + path.read_bytes()),
    "json": lambda path: path.write_text(path.read_text() + "3\n"),
    "operation": lambda path: path.write_text(path.read_text() + '{"op_code": 99}\n'),
    "flipped": replace('"values":[0.', '"values":[7.'),
    "score": result(score=0.99),
    "no share": result(score=7.5, curve=[[2, 7.5]]),
    "curve": result(curve=[[2, 0.125]]),
    "type": result(curve="x"),
    "hash": result(config_hash="../../x"),
    "unknown": result(folder="../../x"),
    "space": replace("[16, 32, 48]", "[16, 32, 47]"),
    "objectives": replace('"directions":[2]', '"directions":[1]'),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_storage_is_one_line_that_names_it(made, damage):
    objective = search_all(trials=3)
    path = objective.place.journal
    DAMAGE[damage](path)
    for writes in (False, True):
        with pytest.raises(InputError) as caught:
            Objective(objective.search, objective.place, objective.options, writes=writes)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every value inside a value."""
    if not isinstance(value, dict | list):
        return []
    keys = value if isinstance(value, dict) else range(len(value))
    own = [(*path, key) for key in keys]
    return own + [deeper for place in own for deeper in places(value[place[-1]], place)]


def test_any_value_of_a_journal_may_be_another_and_the_search_runs_or_says_one_line(made, move):
    rng, said = random.Random(0), []
    fields = {"sampler": "tpe", "pruning": "median"}
    search_all(trials=8, **fields)
    begun = make_objective(trials=9, **fields)
    begun.recover()
    begun.begin_plan()
    begun.next_folder()
    make_objective(trials=9, **fields).recover()  # its question waits in the queue
    lines = [json.loads(line) for line in begun.place.journal.read_text().splitlines()]
    for i in range(15):
        changed = copy.deepcopy(lines)
        part: Any = rng.choice(changed)
        *path, last = rng.choice(places(part))
        for key in path:
            part = part[key]
        part[last] = rng.choice([None, True, -1, 3, 1.5, 1e308, "x", [], {}, [1], {"a": 1}])
        move(f"changed{i}")
        Path(f"changed{i}").mkdir()
        text = "".join(f"{json.dumps(line)}\n" for line in changed)
        Path(f"changed{i}/{begun.place.journal.name}").write_text(text)
        try:
            make_result(search_all(trials=10, **fields))
        except UserError as error:
            said.append(str(error))
    assert said
    assert not [text for text in said if "\n" in text]


def test_whoever_reads_writes_nothing(made):
    objective = search_all(trials=3)
    path = objective.place.journal
    path.write_bytes(path.read_bytes() + b'{"op_code": 4, "wor')  # another process writes
    before = path.read_bytes()
    seen = Objective(objective.search, objective.place, objective.options, writes=False)
    assert seen.results == objective.results
    nothing = Place(root=Path("nothing"), name="made")
    assert not Objective(objective.search, nothing, Options(), writes=False).results
    write_search(rules="{max_parameters: 9000}")
    other = Objective(load_search(made), objective.place, objective.options, writes=False)
    assert not other.results
    assert path.read_bytes() == before
    assert not nothing.root.exists()


def test_a_point_that_is_no_longer_valid_is_left_out(made, monkeypatch):
    objective = search_all(trials=6)
    gone, spec = next(iter(objective.results.values())).point, type(objective.search).spec

    def refuse(search, point):
        if point == gone:
            raise ConfigError("not any more")
        return spec(search, point)

    monkeypatch.setattr(type(objective.search), "spec", refuse)
    assert len(make_objective(trials=6).results) == 5


@pytest.mark.parametrize("name", ["search-tiny", "search-grid"])
def test_the_committed_journals_have_a_result_for_each_trial(name):
    search = load_search(name)
    place = Place(root=Path("nowhere"), name=name, save=COMMITTED / "trials")
    objective = Objective(search, place, Options(device="cpu"), writes=False)
    assert len(objective.results) == search.num_trials
    assert len(objective.repeats) == len(objective.wanted_repeats())
    if name == "search-tiny":
        stored = SearchResult.model_validate_json((COMMITTED / f"{name}.json").read_text())
        again = make_result(objective)
        assert again.importances == pytest.approx(stored.importances)
        assert again.replace(importances=stored.importances) == stored
