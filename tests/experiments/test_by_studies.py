"""Verdicts that studies decide, for made results of every kind."""

from dataclasses import replace
from pathlib import Path

import pytest

from experiments.claims import by_studies
from experiments.claims.by_results import FROM_RESULTS
from experiments.claims.result_files import Results
from vitcli.runner.study.result import StudyResult
from vitcli.runner.study.statistics import compare
from vitcli.runner.study.table import read_document

RESULTS = Path(__file__).parents[2] / "experiments" / "results"
UNDERSCORED = [name.replace("-", "_") for name in by_studies.ORDER]


def study(name: str, base: float, **rows: float) -> StudyResult:
    """A result of three seeds with these accuracies in percent; a seed adds up to 0.2 points.

    A row of its own is added to a single one, because the seed variance is pooled over rows.
    """
    rows = rows if len(rows) > 1 else {**rows, "spare": base}
    template = read_document((RESULTS / "ablation-cifar10-full.json").read_text())
    noise = {"baseline": (0.0, 0.1, 0.2)}
    made = []
    for i, (variant, score) in enumerate({"baseline": base, **rows}.items()):
        trials = [
            template.rows[0].trials[0].replace(seed=seed, test_accuracy=(score + extra) / 100)
            for seed, extra in enumerate(noise.get(variant, (0.1 * (i % 2), 0.2, 0.1)))
        ]
        made.append(template.rows[0].replace(variant=variant.replace("_", "-"), trials=trials))
    return template.replace(name=name, rows=tuple(made), num_comparisons=len(rows))


class Made(Results):
    """Results that a test made."""

    def __init__(self, *studies: StudyResult) -> None:
        super().__init__(Path("nowhere"))
        self._studies = {doc.name: doc for doc in studies}


def diverged(doc: StudyResult, variant: str, *seeds: int) -> StudyResult:
    """The result with these trainings of a row diverged."""
    rows = []
    for row in doc.rows:
        trials = [
            trial.replace(state="diverged", test_accuracy=None)
            if row.variant == variant and trial.seed in seeds
            else trial
            for trial in row.trials
        ]
        rows.append(row.replace(trials=trials))
    return doc.replace(rows=tuple(rows))


@pytest.mark.parametrize(
    ("rows", "verdict"),
    [
        ({"no_residual": 50.0}, "in part"),
        ({"no_residual": 70.0}, "undecided"),
        ({"no_residual": 60.0}, "undecided"),
        ({"other": 50.0}, "no verdict"),
    ],
)
def test_accuracy_alone_does_not_decide_whether_training_is_stable(rows, verdict):
    found = FROM_RESULTS["S0-16"](Made(study("ablation-cifar10-full", 60.0, **rows)))
    assert found.verdict == verdict
    assert found.found.startswith("no training diverged; " if verdict[0] != "n" else "not run")


@pytest.mark.parametrize(
    ("variant", "seeds", "verdict", "told"),
    [
        ("no-residual", (0, 1, 2), "holds", "diverged in 3 of 3 trainings (baseline: 0 of 3)"),
        ("no-residual", (0,), "undecided", "diverged in 1 of 3 trainings (baseline: 0 of 3)"),
        ("baseline", (0, 1, 2), "refuted", "diverged in 0 of 3 trainings (baseline: 3 of 3)"),
        ("baseline", (2,), "undecided", "diverged in 0 of 3 trainings (baseline: 1 of 3)"),
    ],
)
def test_trainings_that_diverge_decide_whether_training_is_stable(variant, seeds, verdict, told):
    doc = diverged(study("ablation-cifar10-full", 60.0, no_residual=70.0), variant, *seeds)
    found = FROM_RESULTS["S0-16"](Made(doc))
    assert found.verdict == verdict
    assert told in found.found


def test_no_stated_loss_follows_from_trainings_that_diverged():
    rows = dict.fromkeys((*UNDERSCORED, "single_head"), 70.0)
    doc = study("ablation-cifar10-full", 60.0, **rows)
    assert FROM_RESULTS["S2-50"](Made(doc)).verdict == "refuted"
    some = every = doc
    for row in doc.rows[1:]:
        some, every = diverged(some, row.variant, 0), diverged(every, row.variant, 0, 1, 2)
    assert FROM_RESULTS["S2-50"](Made(some)).verdict == "undecided"
    assert FROM_RESULTS["S2-50"](Made(every)).verdict == "undecided"
    assert FROM_RESULTS["S2-50"](Made(diverged(doc, "baseline", 0, 1, 2))).verdict == "undecided"


def test_what_is_left_of_a_row_that_diverged_gives_no_difference():
    doc = study("ablation-augmentation", 60.0, none=60.0, heavy=70.0)
    assert FROM_RESULTS["S2-43"](Made(diverged(doc, "heavy", 1))).verdict == "undecided"
    assert FROM_RESULTS["S2-43"](Made(diverged(doc, "heavy", 0, 1, 2))).verdict == "undecided"
    parts = dict(zip(UNDERSCORED, (40, 50, 60, 70), strict=True))
    doc = study("ablation-cifar10-full", 90.0, **parts)
    found = FROM_RESULTS["S2-51"](Made(diverged(doc, "no-layernorm", 0, 1, 2)))
    assert found.verdict == "in part"
    assert "no-layernorm minus no-residual diverged in 3 of 3" in found.found


def test_rows_without_common_seeds_are_not_said_to_diverge():
    doc = study("ablation-augmentation", 60.0, none=60.0, heavy=70.0)
    rows = []
    for row in doc.rows:
        more = [trial.replace(seed=trial.seed + 3) for trial in row.trials]
        trials = {"none": more, "heavy": row.trials}.get(row.variant, [*row.trials, *more])
        rows.append(row.replace(trials=trials))
    found = FROM_RESULTS["S2-43"](Made(doc.replace(rows=tuple(rows))))
    assert found.verdict == "undecided"
    assert "heavy minus none has fewer than 3 common seeds" in found.found


def test_fewer_than_three_seeds_decide_nothing_and_other_rows_do_not_matter():
    doc = study("ablation-augmentation", 60.0, none=60.0, heavy=70.0, erasing=65.0)
    fewer = [
        row.replace(trials=row.trials[:1]) if row.variant == "erasing" else row for row in doc.rows
    ]
    found = FROM_RESULTS["S2-43"](Made(doc.replace(rows=tuple(fewer))))
    assert found.verdict == "holds"
    assert found.found.endswith("n = 3 seeds)")
    fewer = [row.replace(trials=row.trials[:2]) for row in doc.rows]
    found = FROM_RESULTS["S2-43"](Made(doc.replace(rows=tuple(fewer))))
    assert found.verdict == "undecided"
    assert "heavy 70.10 %, none 60.15 %; fewer than 3 seeds give no interval" in found.found
    assert found.found.endswith("n = 2 seeds)")
    lost = diverged(doc.replace(rows=tuple(fewer)), "heavy", 0, 1)
    found = FROM_RESULTS["S2-43"](Made(lost))
    assert found.verdict == "undecided"
    assert "60.05 %, heavy diverged in 2 of 2, none 60.15 %; fewer" in found.found
    none = [row.replace(trials=()) for row in doc.rows]
    found = FROM_RESULTS["S2-43"](Made(doc.replace(rows=tuple(none))))
    assert found.found == "not run: ablation-augmentation has no trial that ended"


@pytest.mark.parametrize(
    ("scores", "verdict"),
    [
        ((40, 50, 60, 70), "holds"),
        ((80, 50, 60, 70), "refuted"),
        ((40, 50, 60, 60), "in part"),
        ((60, 60, 60, 60), "undecided"),
    ],
)
def test_the_ranking_follows_from_paired_differences_of_neighbours(scores, verdict):
    made = study("ablation-cifar10-full", 90.0, **dict(zip(UNDERSCORED, scores, strict=True)))
    assert FROM_RESULTS["S2-51"](Made(made)).verdict == verdict


@pytest.mark.parametrize(
    ("vits", "behind", "near"),
    [
        ((50.0, 50.0), "holds", "refuted"),
        ((70.0, 70.0), "refuted", "holds"),
        ((60.0, 60.0), "undecided", "holds"),
        ((57.6, 57.6), "holds", "undecided"),
        ((59.0, 59.0), "holds", "holds"),
        ((50.0, 70.0), "in part", "in part"),
    ],
)
def test_a_vit_can_be_behind_a_resnet_and_as_close_to_it_as_in_the_report(vits, behind, near):
    small, heavy = vits
    doc = study("classification-cifar10-short", 60.0, vit_small=small, vit_small_aug=heavy)
    assert FROM_RESULTS["S2-41"](Made(doc)).verdict == behind
    assert by_studies.near_resnet(Made(doc)).verdict == near
    lost = diverged(diverged(doc, "vit-small", 0, 1, 2), "vit-small-aug", 0, 1, 2)
    assert by_studies.near_resnet(Made(lost)).verdict == "undecided"


def patches(scores: tuple[float, ...], costs: tuple[int | None, ...] = (4, 8, 2, 1)) -> Made:
    """A study of patch sizes with these accuracies for 2, 8 and 16 pixels; 4 pixels have 60 %."""
    names = ("patch_2", "patch_8", "patch_16")
    doc = study("ablation-patch-size", 60.0, **dict(zip(names, scores, strict=True)))
    rows = [
        row.replace(forward_flops=count, variant=row.variant.replace("baseline", "patch-4"))
        for row, count in zip(doc.rows, costs, strict=True)
    ]
    return Made(doc.replace(rows=tuple(rows)))


@pytest.mark.parametrize(
    ("scores", "costs", "verdict"),
    [
        ((70, 50, 40), (4, 8, 2, 1), "holds"),
        ((70, 40, 50), (4, 8, 2, 1), "in part"),
        ((50, 70, 80), (4, 8, 2, 1), "in part"),
        ((60, 60, 60), (4, 8, 2, 1), "in part"),
        ((70, 50, 40), (4, 8, 2, 3), "in part"),
        ((50, 70, 80), (4, 2, 8, 9), "refuted"),
        ((60, 60, 60), (4, 2, 8, 9), "undecided"),
        ((70, 50, 40), (4, 8, None, 1), "in part"),
        ((60, 60, 60), (4, None, None, None), "undecided"),
    ],
)
def test_larger_patches_are_judged_by_cost_and_accuracy_between_neighbours(scores, costs, verdict):
    assert FROM_RESULTS["S2-42"](patches(scores, costs)).verdict == verdict


def test_a_study_of_some_patch_sizes_gives_no_verdict():
    doc = patches((70, 50, 40)).study("ablation-patch-size")
    assert doc is not None
    found = FROM_RESULTS["S2-42"](Made(doc.replace(rows=doc.rows[:2])))
    assert found.verdict == "no verdict"
    assert found.found == "not run: ablation-patch-size has no trial of patch-8 and patch-16"


@pytest.mark.parametrize(
    ("heavy", "verdict"), [(70.0, "holds"), (50.0, "refuted"), (60.0, "undecided")]
)
def test_heavy_augmentation_is_compared_with_none(heavy, verdict):
    made = Made(study("ablation-augmentation", 60.0, none=60.0, other=1.0, heavy=heavy))
    assert FROM_RESULTS["S2-43"](made).verdict == verdict


@pytest.mark.parametrize(
    ("scores", "verdict"),
    [
        ((70, 70, 70), "holds"),
        ((70, 60, 60), "in part"),
        ((60, 60, 60), "undecided"),
        ((60, 60, 50), "undecided"),
        ((50, 50, 50), "refuted"),
    ],
)
def test_contrastive_training_must_win_with_few_labels_and_with_all(scores, verdict):
    names = ("study-pretraining-100", "study-pretraining", "study-pretraining-all")
    made = [study(name, 60.0, clip=score) for name, score in zip(names, scores, strict=True)]
    assert FROM_RESULTS["S2-61"](Made(*made[:2])).verdict == "no verdict"
    assert FROM_RESULTS["S2-61"](Made(*made)).verdict == verdict


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"p_holm": 0.04}, "+1.00 [+0.20, +1.80] points, p = 0.040"),
        ({"p_holm": 0.0004}, "+1.00 [+0.20, +1.80] points, p < 0.001"),
        ({}, "+1.00 [\u22120.60, +2.60] points"),
        (
            {"pooled_low": None, "pooled_high": None},
            "+1.00 [+0.20, +1.80] points, 4 more seeds",
        ),
        ({"ci_low": None}, "has fewer than 3 common seeds"),
    ],
)
def test_a_difference_is_shown_with_what_decides_it(changes, text):
    base, row, _ = compare(study("ablation-norm", 60.0, other=60.0))
    known = {"difference": 1.0, "ci_low": 0.2, "ci_high": 1.8, "joint_low": -0.5, "joint_high": 2.5}
    known |= {"pooled_low": -0.6, "pooled_high": 2.6}
    assert by_studies.difference_text(replace(row, **known | changes), base) == text


def test_a_verdict_from_trainings_carries_its_setting():
    doc = study("ablation-augmentation", 60.0, none=60.0, heavy=50.0)
    found = FROM_RESULTS["S2-43"](Made(doc.replace(epochs=5)))
    assert (found.verdict, found.setting, found.said) == (
        *("refuted", "after 5 epochs", "refuted after 5 epochs"),
    )
    assert FROM_RESULTS["S2-43"](Made()).said == "no verdict"


@pytest.mark.parametrize(
    ("words", "word"),
    [
        (["holds", "holds"], "holds"),
        (["holds", "refuted"], "in part"),
        (["holds", "no verdict"], "no verdict"),
        (["holds", "undecided"], "in part"),
        (["in part"], "in part"),
        (["refuted", "undecided"], "undecided"),
        ([], "undecided"),
        (["refuted", "refuted"], "refuted"),
    ],
)
def test_the_parts_of_a_statement_give_one_word(words, word):
    assert by_studies.of_words(words) == word


@pytest.mark.parametrize(
    ("verdict", "agrees"),
    [
        ("replicates", True),
        ("same", True),
        ("opposite", False),
        ("not replicated", False),
        ("undecided", None),
        ("diverged", None),
        ("baseline diverged", None),
        (None, None),
    ],
)
def test_a_row_agrees_with_the_loss_that_the_source_states_or_not(verdict, agrees):
    assert by_studies.agrees(verdict) is agrees


def test_without_results_nothing_that_needs_them_has_a_verdict():
    nothing = Made()
    assert {judge(nothing).verdict for judge in FROM_RESULTS.values()} == {"no verdict"}
