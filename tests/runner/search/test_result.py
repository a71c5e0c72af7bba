"""The document of a search, its files, and the study of its final stage."""

import re
from typing import Any

import pytest

from tests.fabricated_study import HOSTILE
from tests.runner.search.made_up import ROOT, make_objective, search_all, write_search
from vitcli.runner.errors import ConfigError
from vitcli.runner.files import commit_json
from vitcli.runner.search.figures import FIGURES, figures_of
from vitcli.runner.search.final import load_final
from vitcli.runner.search.publish import publish, table_csv
from vitcli.runner.search.result import SearchResult, best_table, make_result
from vitcli.runner.search.trial import SearchTrial
from vitcli.runner.study.definition import load_study
from vitcli.runner.study.remove import SEARCH_FIGURES, find_removal, remove


def make_trial(name: str, score: float | None, parameters: int, **fields) -> SearchTrial:
    given: dict[str, Any] = {
        "point": {"model.depth": 1},
        "state": "finished",
        "seed": 0,
        "forward_flops": 5,
    }
    digest = (name + 64 * "0")[:64]
    return SearchTrial(
        **(given | {"config_hash": digest, "score": score, "parameters": parameters} | fields)
    )


def make_doc(*trials: SearchTrial, **fields) -> SearchResult:
    given: dict[str, Any] = {
        "name": "made",
        "command": "vitcli search made.yaml",
        "task": "classify",
        "data": "scenes",
        "epochs": 2,
        "seed": 0,
        "sampler": "random",
        "pruning": "none",
        "num_trials": 6,
        "space": {"model.depth": "1, 2"},
        "short_names": {"model.depth": "depth"},
        "base": {"model.depth": 1},
        "base_config": {},
        "importance_evaluator": "PED-ANOVA",
        "importances": {},
        "trials": trials,
    }
    return SearchResult(**(given | fields))


TRIALS = (
    make_trial("a", 0.5, 300),
    make_trial("b", 0.6, 200),
    make_trial("c", 0.6, 100),
    make_trial("d", 0.4, 50),
    make_trial("e", 0.3, 60),
    make_trial("f", None, 10, state="diverged", reason="it exploded"),
    make_trial("g", 0.7, 20, state="pruned"),
)


def names(trials) -> str:
    return "".join(trial.config_hash[0] for trial in trials)


def test_the_ranking_and_the_front_hold_finished_trials_only():
    doc = make_doc(*TRIALS)
    assert names(doc.ranked) == "cbade"
    assert doc.winner.config_hash[0] == "c", "of equal scores, the smaller model"
    assert names(doc.front) == "dc"
    assert doc.replace(cost="forward_flops").cost_name == "forward_flops"
    empty = make_doc()
    assert (empty.winner, empty.front, empty.noise()) == (None, [], None)


def test_where_smaller_scores_are_better_the_order_is_the_other_way_round():
    doc = make_doc(*TRIALS).replace(task="mae")
    assert not doc.headline.higher_is_better
    assert names(doc.ranked)[0] == "e"
    assert names(doc.front) == "de"


def test_the_noise_is_pooled_over_repeated_configurations():
    more = [make_trial("a", 0.52, 300, seed=1), make_trial("b", 0.66, 200, seed=1)]
    sd, freedom = make_doc(*TRIALS, repeats=more).noise()
    assert freedom == 2
    assert sd == pytest.approx((((0.01**2) * 2 + (0.03**2) * 2) / 2) ** 0.5)


def test_hostile_names_are_escaped_on_the_page(tmp_path):
    text = " ".join(HOSTILE)
    trials = [make_trial("a", 0.5, 3, reason=text), *TRIALS[5:6]]
    own = {name: {text: text} for name in ("space", "short_names", "base")}
    names = dict.fromkeys(("name", "question", "command"), text)
    doc = make_doc(*(t.replace(point={text: text}) for t in trials), skipped={text: 1}, **own)
    publish(doc.replace(**names), tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "<script" not in page
    assert "&lt;script&gt;alert" in page
    assert "default-src &#39;none&#39;" in page or "default-src 'none'" in page
    assert "://" not in re.sub(r'src="data:[^"]*"', "", page)


FINAL = "{seeds: [10, 11], changes: {train.epochs: 5}}"


def test_a_search_writes_its_files_and_is_removed_with_its_storage_and_final_stage(made):
    write_search(final=FINAL)
    objective = search_all(trials=12)
    doc = make_result(objective)
    assert doc.command == "vitcli search made.yaml -s search.trials=12"
    assert make_result(search_all(trials=12)) == doc
    publish(doc, ROOT)
    for name in ("report.html", "table.csv", "figures/pareto.svg", "figures/course.png"):
        assert (ROOT / name).is_file()
    assert (ROOT / "report.html").read_text().count("<img") == 3
    assert SearchResult.model_validate_json((ROOT / "results.json").read_text()) == doc
    lines = table_csv(doc).splitlines()
    assert len(lines) == 13
    assert lines[0].startswith("model.depth,model.embed_dim,model.num_heads,config_hash,seed,state")
    assert doc.importances.keys() == doc.space.keys()
    assert sum(doc.importances.values()) == pytest.approx(1)
    load_final(objective.search, doc, ROOT)
    (ROOT / "final").mkdir()
    for name in ("plan.json", "results.json"):
        commit_json(ROOT / "final" / name, {"study": "made-final", "trials": {}})
    assert {*SEARCH_FIGURES} == {*FIGURES}
    left = remove([find_removal("made")])
    assert all(path.startswith(str((ROOT / "trials").resolve())) for path in left), "made-up runs"
    assert [*ROOT.glob("[!.]*")] == [ROOT / "trials"]


def test_the_final_stage_has_fresh_seeds_and_who_has_seen_its_scores_does_not_choose_again(made):
    write_search(final=FINAL)
    objective = search_all()
    search, doc = objective.search, make_result(objective)
    other = doc.replace(trials=doc.ranked[1:])
    load_final(search, other, ROOT)
    study = load_final(search, doc, ROOT)  # nothing was tested yet
    assert [variant.name for variant in study.variants] == ["base", "winner"]
    assert study.seeds == (10, 11)
    base, winner = (variant.spec for variant in study.variants)
    assert [(each.train.epochs, each.data.val_split) for each in (base, winner)] == [(5, 0)] * 2
    assert winner.model.depth == doc.winner.point["model.depth"]
    assert load_study(str(ROOT / "made-final.yaml")).baseline.spec == base
    (ROOT / "final").mkdir()
    load_final(search, doc, ROOT)
    with pytest.raises(ConfigError, match="tested another winner"):
        load_final(search, other, ROOT)
    changed = ("[12, 13], changes: {train.epochs: 5}", "[10, 11, 12], changes: {train.epochs: 5}")
    for fields in (*changed, "[10, 11], changes: {train.epochs: 6}"):
        write_search(final=f"{{seeds: {fields}}}")
        with pytest.raises(ConfigError, match="tested another winner"):
            load_final(make_objective().search, doc, ROOT)


def test_a_winner_that_is_the_base_needs_no_final_stage(made):
    write_search(final=FINAL)
    assert load_final(make_objective().search, make_doc(*TRIALS), ROOT) is None


def test_a_figure_shows_the_score_by_each_field_that_varies():
    space = {"optim.lr": "0.0001 to 0.01 (log)", "optim.weight_decay": "0, 1", "model.norm": "a, b"}
    rates = [10 ** (-4 + i / 3) for i in range(7)]
    points = [dict(zip(space, (rate, i % 2, "a"), strict=True)) for i, rate in enumerate(rates)]
    trials = [make_trial(str(i), 0.5 + i / 100, 100, point=each) for i, each in enumerate(points)]
    names = {field: field.rpartition(".")[2] for field in space}
    doc = make_doc(*trials, space=space, short_names=names, base=dict.fromkeys(space))
    panels = FIGURES["fields"][0](doc).axes
    assert [axes.get_xlabel() for axes in panels] == ["lr", "weight_decay"]
    assert panels[0].get_xscale() == "log"
    places, scores = panels[0].lines[0].get_data()
    expected = {rate: 50 + i for i, rate in enumerate(rates)}
    assert dict(zip(places, scores, strict=True)) == pytest.approx(expected)
    assert "*" not in best_table(doc).rows[0][0], "there is no front in one column"
    assert [*figures_of(doc)] == ["fields", "course"], "all models have the same size"
