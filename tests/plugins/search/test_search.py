"""Searches: their files, evolution, and trials that are trained once, whatever is killed."""

import json
import os
from collections import deque
from collections.abc import Callable, Generator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState, create_trial

from vitcli.core.spec import ExperimentSpec
from vitcli.plugins.search.definition import load_search
from vitcli.plugins.search.document import make_document, validation_score, write_confirmation
from vitcli.plugins.search.trials import (
    EXCLUDED,
    INVALID,
    JOURNAL,
    REPEATED,
    EvolutionSampler,
    SearchDrive,
    Trials,
    distributions,
    run_search,
)
from vitcli.runner.engines.drivers import read_plan
from vitcli.runner.engines.local import Setup
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.experiment.config import parse_experiment
from vitcli.runner.experiment.yaml_text import Document, dump
from vitcli.runner.files import commit, commit_json, make_folder
from vitcli.runner.run.folder import RunDir
from vitcli.runner.study.definition import load_study
from vitcli.runner.study.page import html, publish
from vitcli.runner.study.plan import Options
from vitcli.runner.study.table import build, read_document, render
from vitcli.runner.text import ignore_message
from vitcli.runner.train.events import Ended, EpochDone, TrialEvent

ROOT = Path("runs/made")
SPACE = "{model.depth: [1, 2, 3, 4], model.embed_dim: [16, 32, 48], model.num_heads: [1, 2, 5]}"


def write_search(**fields: str) -> str:
    """Write ``made.yaml``; ``fields`` replace entries of the search."""
    entries = {"space": SPACE, "sampler": "random", "trials": "6"} | fields
    lines = "\n".join(f"  {name}: {value}" for name, value in entries.items())
    Path("made.yaml").write_text(
        "question: which is best?\nbase: quickstart\ndata: {val_split: 1000}\n"
        f"train: {{epochs: 2}}\nsearch:\n{lines}\n"
    )
    return "made.yaml"


def size(spec: ExperimentSpec) -> int:
    model: Any = spec.model
    return 100 * model.depth * model.embed_dim


def score(spec: ExperimentSpec) -> float:
    """Return a score by formula; the best point of ``SPACE`` is depth 3, width 48, one head."""
    model: Any = spec.model
    return 0.5 - 0.05 * abs(model.depth - 3) + model.embed_dim / 1000 - 0.01 * model.num_heads


def write_run(folder: Path, entry: dict[str, Any], *, state: str, epochs: int = 2) -> None:
    """Write the files of a run that a search reads."""
    run, spec = RunDir(folder), parse_experiment(entry["config"], Document("", "plan"))
    make_folder(folder)
    commit(folder / "config.yaml", dump(entry["config"]).encode())
    numbers = ({"step": epoch, "epoch": epoch} for epoch in range(1, epochs + 1))
    run.set_metrics([record | {"val_accuracy": score(spec)} for record in numbers])
    facts = {"config_hash": entry["config_hash"], "seed": spec.seed, "threads": 1}
    commit_json(folder / "meta.json", facts | {"data_hash": "d" * 64})
    if state == "finished":
        result = {"val_accuracy": score(spec), "num_test": 0, "parameters": size(spec)}
        commit_json(folder / "result.json", result)
    run.set_status(state, epochs, "as the test wants" if state == "diverged" else "")  # type: ignore[arg-type]


class Engine:
    """Ends each job at once, as a function of its configuration says."""

    behave: Callable[[ExperimentSpec], str] = staticmethod(lambda spec: "finished")
    trained: list[str]
    """Run folders, in the order of the trainings."""
    cancelled: list[str]

    def __init__(self, root: Path, folders: list[str], setup: Setup) -> None:
        self.root, self.waiting, self.stopping = root, deque(folders), False

    def events(self, tick: Callable[[], None]) -> Generator[TrialEvent, None, None]:
        while self.waiting and not self.stopping:
            tick()
            folder = self.waiting.popleft()
            plan = read_plan(self.root)
            assert plan["without_test"] is True
            spec = parse_experiment(plan["trials"][folder]["config"], Document("", "plan"))
            Engine.trained.append(folder)
            state = Engine.behave(spec)
            for epoch in (1, 2):
                record = {"epoch": epoch, "step": epoch, "val_accuracy": score(spec)}
                yield TrialEvent(folder, EpochDone(record=record))
                if folder in Engine.cancelled:
                    state = "interrupted"
                    break
            write_run(self.root / folder, plan["trials"][folder], state=state, epochs=epoch)
            yield TrialEvent(folder, Ended(state=state))

    def cancel(self, folder: str) -> None:
        Engine.cancelled.append(folder)

    def stop(self) -> None:
        self.stopping = True


def make_trials(root: Path = ROOT, **changes: Any) -> Trials:
    """Return the trials of ``made.yaml``, continued from what the folder has."""
    search = load_search("made.yaml", {f"search.{field}": v for field, v in changes.items()})
    make_folder(root)
    return Trials(search, root, Options(jobs=1, device="cpu", command="vitcli search made.yaml"))


def search_all(root: Path = ROOT, **changes: Any) -> Trials:
    trials = make_trials(root, **changes)
    run_search(trials, ignore_message)
    return trials


def points(trials: Trials) -> list[str]:
    return [json.dumps(trial.params, sort_keys=True) for trial in trials.asked().values()]


@pytest.fixture
def made(here, monkeypatch) -> None:
    monkeypatch.setattr("vitcli.runner.engines.drive.LocalEngine", Engine)
    monkeypatch.setattr("vitcli.plugins.search.trials.model_size", size)
    monkeypatch.setattr(Engine, "trained", [], raising=False)
    monkeypatch.setattr(Engine, "cancelled", [], raising=False)
    monkeypatch.setattr(Engine, "behave", staticmethod(lambda spec: "finished"))
    write_search()


RATES = [
    *("[1]", "[1, true]", "3", "{low: 2.0, high: 1.0}", "{low: 0, high: 1, log: true}"),
    *("{low: 1, hihg: 2}", "{low: 0.1, high: 0.2, step: 1.0}", "{low: 1, high: 4, step: 0.5}"),
]
STOP = "train.early_stopping"
NOT_VARIED = ("seed", "data.val_split", "task.name", "task.headline", "train.limit_batches", STOP)
MISTAKES: list[tuple[dict[str, str], str]] = [
    ({"trails": "3"}, "'trials'"),
    ({"space": "{model.dept: [1, 2]}"}, "depth"),
    *(({"space": f"{{optim.lr: {text}}}"}, "optim.lr") for text in RATES),
    ({"space": "{data.augment.policy: [[1], [2]]}"}, "policy"),
    *(({"space": f"{{{field}: [1, 2]}}"}, field) for field in NOT_VARIED),
    ({"space": "{}"}, "search.space"),
    ({"trials": "null"}, "trials"),
    ({"sampler": "grid", "space": "{optim.lr: {low: 0.1, high: 0.2}}"}, "sampler"),
    ({"rules": "{exclude: [{model.deph: 1}]}"}, "model.deph"),
]


@pytest.mark.parametrize(("fields", "told"), MISTAKES, ids=lambda value: str(value)[:40])
def test_a_mistake_names_its_place(here, fields, told):
    with pytest.raises(ConfigError, match=r"^made\.yaml:.*") as caught:
        load_search(write_search(**fields))
    assert told in str(caught.value)


def test_settings_that_no_search_has_are_refused(here):
    for field, value in {"train.init": "x", "pretrain.task.name": "mae", "search": 3}.items():
        with pytest.raises(ConfigError, match=rf"{field.partition('.task')[0]}: "):
            load_search(write_search(), {field: value})


def test_with_early_stopping_all_trials_have_as_many_evaluations(here):
    assert load_search(write_search(), {STOP: 2}).base.train.early_stopping == 2
    with pytest.raises(ConfigError, match=r"train\.eval_every out of the space"):
        load_search(write_search(space="{train.eval_every: [1, 2]}"), {STOP: 2})


def test_what_makes_scores_incomparable_changes_the_key(here):
    key = load_search(write_search()).key()
    for same in ({"search.trials": 50}, {"search.sampler": "tpe"}, {"search.seed": 4}):
        assert load_search("made.yaml", same).key() == key
    for other in ({"train.epochs": 9}, {"search.rules.max_parameters": 9}, {"seed": 5}):
        assert load_search("made.yaml", other).key() != key
    write_search(space=SPACE.replace("48", "64"))
    assert load_search("made.yaml").key() != key


def distances(scores: list[float], parent: int, sample: int = 4, way: Any = "maximize") -> set[int]:
    """Return in how many fields children differ from a parent; the scores came in this order."""
    fields = load_search(write_search(space=SPACE.replace(", 5]", "]"))).fields
    space, study = distributions(fields), optuna.create_study(direction=way)
    for i, (point, score) in enumerate(zip(fields.points(), scores, strict=False)):
        given: Any = {"params": point, "distributions": space}
        member = create_trial(**given, value=score, state=TrialState.COMPLETE)
        member.datetime_complete = datetime(2026, 1, 1) + timedelta(seconds=i)
        study.add_trial(member)
    best, counts = study.trials[parent].params, set()
    for seed in range(30):
        study.sampler = EvolutionSampler(space, 4, sample, seed)
        trial = study.ask(space)
        study.tell(trial, state=TrialState.FAIL)
        counts.add(sum(trial.params[field] != best[field] for field in best))
    return counts


def test_a_child_differs_from_the_best_of_a_sample_in_one_field_and_the_oldest_die(here):
    assert distances([0.1, 0.2, 0.9, 0.3], 2) == {1}
    assert distances([0.9, 0.2, 0.1, 0.4], 2, way="minimize") == {1}
    scores = [0.9, 0.1, 0.2, 0.3, 0.4]
    assert distances(scores, 4) == {1}
    assert distances(scores, 0) != {1}
    assert distances(scores, 4, sample=1) != {1}, "others have a chance"


def begin(number: int) -> list[str]:
    """Ask for points without training them, as a search that is killed; return their folders."""
    trials = make_trials()
    return [trials.next_folder() or "" for _ in range(number)]


def behave(state: str, *depths: int) -> None:
    """Let the trainings of models of some depths end in a state; the others finish."""

    def end(spec: Any) -> str:
        return state if spec.model.depth in depths else "finished"

    Engine.behave = staticmethod(end)


@pytest.mark.parametrize("fields", [{"sampler": "grid", "trials": "null"}, {"trials": "500"}])
def test_a_small_space_is_used_up_after_a_kill_and_failures(made, fields):
    write_search(space="{model.depth: [1, 2, 3], model.num_heads: [1, 2, 5]}", **fields)
    (killed,) = begin(1)
    behave("failed", 2)
    trials = search_all()
    failed = trials.pending()
    assert len(failed) == 2
    assert killed in trials.asked()
    assert trials.skipped()[INVALID] >= 3
    behave("finished")
    Engine.trained.clear()
    trials = search_all()
    assert Engine.trained == failed, "the next call tries failed trials again, and nothing else"
    assert (len(trials.asked()), trials.pending()) == (6, [])


def test_rules_are_applied_before_a_training_and_do_not_use_up_trials(made):
    exclude = "[{model.depth: [1, 2], model.num_heads: 2}]"
    write_search(rules=f"{{max_parameters: 6400, exclude: {exclude}}}", trials="500")
    trials = search_all()
    assert max(read_plan(ROOT)["parameters"].values()) == 6400
    tried = [trial.params for trial in trials.asked().values()]
    assert not [p for p in tried if p["model.num_heads"] == 2 and p["model.depth"] < 3]
    assert trials.skipped().keys() >= {EXCLUDED, INVALID, "more than 6,400 parameters"}


@pytest.mark.parametrize("sampler", ["random", "tpe", "evolution"])
def test_a_killed_search_proposes_the_points_of_one_that_was_not(made, sampler):
    write_search(sampler=sampler, trials="16", population="4", sample_size="2")
    whole = points(search_all(ROOT / "whole"))
    Engine.trained.clear()
    for number in (1, 12):
        search_all(trials=number)
        begin(1)  # is killed before the training
        journal = ROOT / JOURNAL
        os.truncate(journal, journal.stat().st_size - 9)  # and in the middle of a line
    killed = search_all()
    assert points(killed) == whole
    assert len(Engine.trained) == len(set(Engine.trained)) == 16


def test_after_a_kill_results_count_and_unfinished_trials_come_first(made):
    done, begun, waiting = begin(3)
    entries = read_plan(ROOT)["trials"]
    write_run(ROOT / done, entries[done], state="finished")
    write_run(ROOT / begun, entries[begun], state="interrupted", epochs=1)
    make_trials().study.ask()  # a question without a point
    trials = search_all()
    assert Engine.trained[:2] == [begun, waiting]
    assert len(trials.asked()) == len(Engine.trained) + 1 == 6
    assert {*trials.skipped()} <= {INVALID, REPEATED}


def test_pruned_trials_stay_so_even_without_the_journal(made):
    write_search(pruning="median", trials="16", seed="1")
    doc = make_document(search_all())
    reasons = [row.trials[0].reason for row in doc.rows if row.trials[0].reason]
    assert {*reasons} == {"pruned after epoch 1"}
    assert len(reasons) == len(Engine.cancelled) == doc.searched.states["pruned"]
    assert doc.rows[0].changes["model.embed_dim"] == 48
    count = len(Engine.trained)
    assert make_document(search_all()) == doc
    (ROOT / JOURNAL).unlink()
    assert make_document(search_all()).rows == doc.rows
    assert len(Engine.trained) == count


def test_three_failed_trials_in_a_row_stop_a_search_but_not_for_good(made):
    behave("failed", 1, 2, 3, 4)
    failed = search_all().pending()
    assert len(Engine.trained) == len(failed) == 3
    behave("finished")
    trials = search_all()
    assert {*Engine.trained[-3:]} == {*failed}, "new points come before what failed"
    assert (len(trials.asked()), trials.pending()) == (6, [])


def test_two_drivers_share_one_search(made):
    write_search(trials="4")
    one, other = make_trials(), make_trials()
    folders = [trials.next_folder() for trials in (one, other, one, other)]
    assert len({*folders}) == 4
    drive = SearchDrive(other, None, ignore_message)
    drive._begun.update(folders[1::2])
    assert drive.more() == folders[::2], "at its end, it waits for the trials of the other"
    assert search_all().pending() == []


def test_a_damaged_journal_is_refused(made):
    search_all()
    text = (ROOT / JOURNAL).read_text()
    (ROOT / JOURNAL).write_text(text.replace("{", "x", 1))
    with pytest.raises(InputError, match="delete it"):
        make_trials()


@pytest.mark.parametrize(
    ("space", "changes"),
    [
        (SPACE.replace("}", ", optim.lr: [0.1, 0.2]}"), {}),
        (SPACE.replace("4", "5"), {}),
        (SPACE, {"optim.lr": 0.5}),
    ],
)
def test_the_status_of_an_edited_search_is_refused_and_writes_nothing(made, space, changes):
    search_all(trials=2)
    before = (ROOT / JOURNAL).read_bytes()
    found = Trials(load_search("made.yaml"), ROOT, Options(), writes=False)
    assert len(found.asked()) == 2
    edited = load_search(write_search(space=space), changes)
    with pytest.raises(ConfigError, match="another space"):
        Trials(edited, ROOT, Options(), writes=False)
    assert (ROOT / JOURNAL).read_bytes() == before


def test_the_document_is_that_of_a_study_with_the_best_first(made):
    write_search(trials="500", rules="{max_parameters: 15000}")
    behave("diverged", 4)
    trials = search_all()
    doc = make_document(trials)
    scores = [validation_score(row) for row in doc.rows]
    specs = [trials.search.spec(trial.params) for trial in trials.asked().values()]
    assert scores[0] == max(map(score, specs))
    assert scores == sorted(scores, key=lambda value: -(value or 0))
    assert scores.count(None) == doc.searched.states["diverged"]
    for row in doc.front:
        better = [r for r in doc.rows if (validation_score(r) or 0) >= validation_score(row)]
        assert not [r for r in better if r is not row and r.parameters < row.parameters]
    assert [line[4] for line in build(doc).rows].count("*") == len(doc.front) > 1
    assert read_document(render(doc, "json")) == doc
    assert "test_" not in html(doc, {})
    publish(doc, ROOT)
    assert (ROOT / "figures/pareto.png").is_file()


def test_the_confirmation_tests_the_best_with_fresh_seeds_unless_it_is_the_default(made):
    trials = search_all()
    doc = make_document(trials)
    command = write_confirmation(trials, doc)
    study = load_study(command.split()[2])
    assert (study.name, len(study.seeds)) == ("made-confirm", 6)
    assert trials.search.base.seed not in study.seeds
    default, best = study.variants
    assert best.spec == trials.search.spec(doc.rows[0].changes).replace(data=best.spec.data)
    assert {default.spec.data.val_split, best.spec.data.val_split} == {0}
    base = {field: getattr(trials.search.base.model, field[6:]) for field in doc.rows[0].changes}
    same = doc.replace(rows=[doc.rows[0].replace(changes=base)])
    assert write_confirmation(trials, same) == ""
