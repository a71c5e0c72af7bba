"""Verdicts that results decide, for made results of every kind."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from experiments.claims import by_studies
from experiments.claims.by_results import FROM_RESULTS
from experiments.claims.result_files import Results
from tests.fabricated_study import make_study
from vitcli.runner.study.result import StudyResult

ORDER = by_studies.ORDER
PARTS = "ablation-cifar10-full"


def study(name: str, base: float, **rows: float) -> StudyResult:
    """Return a study of three seeds with these accuracies in percent; seeds add up to 0.2 points.

    A row of its own is added to a single one, because the seed variance is pooled over rows.
    """
    rows = {"baseline": base, **(rows if len(rows) > 1 else {**rows, "spare": base})}
    noise = ((0.0, 0.1, 0.2), (0.1, 0.2, 0.1), (0.0, 0.2, 0.1))
    scores = {
        variant.replace("_", "-"): [(score + extra) / 100 for extra in noise[i and 2 - i % 2]]
        for i, (variant, score) in enumerate(rows.items())
    }
    return make_study(scores, name=name, data="cifar10", num_test=10_000)


def parts(*scores: float, base: float = 90.0) -> StudyResult:
    return study(PARTS, base, **dict(zip(ORDER, scores, strict=True)))


class Made(Results):
    """Results that a test made."""

    def __init__(self, *studies: StudyResult, gaps: dict[str, float] | None = None) -> None:
        super().__init__(Path("nowhere"))
        self._studies = {doc.name: doc for doc in studies}
        self.gaps = gaps

    def figures(self, name: str, what: str) -> dict[str, Any] | None:
        if self.gaps is None:
            return None
        methods = [{"method": m, "gap": gap, "gap_ci95": 0.01} for m, gap in self.gaps.items()]
        return {"faithfulness": {"methods": methods, "n": 10}, "hardware": "a CPU"}


def diverged(doc: StudyResult, variant: str, *seeds: int) -> StudyResult:
    """Return the result with these trainings of a row diverged."""
    rows = []
    for row in doc.rows:
        lost = {"state": "diverged", "test_accuracy": None}
        is_lost = [row.variant == variant and trial.seed in seeds for trial in row.trials]
        trials = [t.replace(**lost) if x else t for t, x in zip(row.trials, is_lost, strict=True)]
        rows.append(row.replace(trials=trials))
    return doc.replace(rows=tuple(rows))


def patches(scores: tuple[float, ...], costs: tuple[int | None, ...] = (4, 8, 2, 1)) -> StudyResult:
    """Return a study of patch sizes with accuracies for 2, 8 and 16 pixels; 4 pixels have 60 %."""
    names = ("patch_2", "patch_8", "patch_16")
    doc = study("ablation-patch-size", 60.0, **dict(zip(names, scores, strict=True)))
    rows = [
        row.replace(forward_flops=count, variant=row.variant.replace("baseline", "patch-4"))
        for row, count in zip(doc.rows, costs, strict=True)
    ]
    return doc.replace(rows=tuple(rows))


def vits(small: float, heavy: float) -> StudyResult:
    return study("classification-cifar10-short", 60.0, vit_small=small, vit_small_aug=heavy)


def curves(*curve: tuple[int, float]) -> StudyResult:
    doc = study("classification-cifar10", 94.0, vit_small_aug=93.1)
    base, row, spare = doc.rows
    trials = [
        trial.replace(curve=tuple((epoch, score + trial.seed / 1000) for epoch, score in curve))
        for trial in row.trials
    ]
    return doc.replace(rows=(base, row.replace(trials=tuple(trials)), spare))


def contrastive(*scores: float) -> list[StudyResult]:
    names = ("study-pretraining-100", "study-pretraining", "study-pretraining-all")
    return [study(name, 60.0, clip=score) for name, score in zip(names, scores, strict=True)]


def cases() -> Iterator[tuple[str, list[StudyResult], str]]:
    """Yield (claim, studies, verdict)."""
    heavy = study("ablation-augmentation", 60.0, none=60.0, heavy=70.0)
    yield from (
        ("S2-43", [study("ablation-augmentation", 60.0, none=60.0, heavy=score)], verdict)
        for score, verdict in ((70.0, "holds"), (50.0, "refuted"), (60.0, "undecided"))
    )
    yield from (("S2-43", [diverged(heavy, "heavy", *s)], "undecided") for s in ((1,), (0, 1, 2)))
    stable = study(PARTS, 60.0, no_residual=70.0)
    yield "S0-16", [study(PARTS, 60.0, no_residual=50.0)], "in part"
    yield "S0-16", [stable], "undecided"
    yield "S0-16", [study(PARTS, 60.0, other=50.0)], "no verdict"
    yield "S0-16", [diverged(stable, "no-residual", 0, 1, 2)], "holds"
    yield "S0-16", [diverged(stable, "no-residual", 0)], "undecided"
    yield "S0-16", [diverged(stable, "baseline", 0, 1, 2)], "refuted"
    yield "S2-51", [parts(40, 50, 60, 70)], "holds"
    yield "S2-51", [parts(80, 50, 60, 70)], "refuted"
    yield "S2-51", [parts(40, 50, 60, 60)], "in part"
    yield "S2-51", [parts(60, 60, 60, 60)], "undecided"
    yield "S2-51", [diverged(parts(40, 50, 60, 70), "no-layernorm", 0, 1, 2)], "in part"
    for scores, behind in (((50, 50), "holds"), ((70, 70), "refuted"), ((50, 70), "in part")):
        yield "S2-41", [vits(*scores)], behind
    yield "S2-42", [patches((70, 50, 40))], "holds"
    yield "S2-42", [patches((70, 40, 50))], "in part"
    yield "S2-42", [patches((50, 70, 80), (4, 2, 8, 9))], "refuted"
    yield "S2-42", [patches((60, 60, 60), (4, None, None, None))], "undecided"
    yield "S2-61", contrastive(70, 70, 70), "holds"
    yield "S2-61", contrastive(70, 60, 60), "in part"
    yield "S2-61", contrastive(60, 60, 50), "undecided"
    yield "S2-61", contrastive(50, 50, 50), "refuted"
    yield from (
        ("S0-22", [study("cifar10-tiny", 71.41 + shift)], verdict)
        for shift, verdict in ((0.0, "holds"), (5.0, "refuted"), (1.0, "undecided"))
    )
    yield from (
        ("S0-23", [study("ablation-epochs", 72.0, **{"100_epochs": score})], verdict)
        for score, verdict in ((75.0, "holds"), (70.0, "refuted"), (72.0, "undecided"))
    )
    yield "S2-44", [curves((10, 0.283), (300, 0.931))], "holds"
    yield "S2-44", [curves((10, 0.50), (300, 0.931))], "in part"
    yield "S2-44", [curves((10, 0.50), (300, 0.95))], "refuted"
    yield "S2-44", [curves((200, 0.931))], "undecided"


@pytest.mark.parametrize(
    ("claim", "studies", "verdict"),
    [*cases()],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_results_give_another_verdict(claim, studies, verdict):
    assert FROM_RESULTS[claim](Made(*studies)).verdict == verdict


@pytest.mark.parametrize(
    ("attention", "gradients", "vit", "verdict"),
    [
        (0.15, 0.2, 60.0, "holds"),
        (0.05, 0.2, 60.0, "in part"),
        (0.11, 0.2, 50.0, "undecided"),
        (0.05, 0.2, 50.0, "refuted"),
    ],
)
def test_maps_must_be_better_than_a_map_of_the_centre(attention, gradients, vit, verdict):
    gaps = {"last layer": 0.0, "rollout": attention, "grad-rollout": gradients, "gradcam": 0.0}
    made = Made(vits(vit, vit), gaps=gaps | {"random": 0.0, "centre": 0.1})
    assert FROM_RESULTS["S2-02"](made).verdict == verdict


def test_trainings_of_the_whole_row_or_of_too_few_seeds_decide_nothing():
    doc = parts(60, 60, 60, 60)
    for row in doc.rows[1:]:
        doc = diverged(doc, row.variant, 0, 1, 2)
    assert FROM_RESULTS["S2-51"](Made(doc)).verdict == "undecided"
    doc = study("ablation-augmentation", 60.0, none=60.0, heavy=70.0)
    for count in (0, 2):
        rows = tuple(row.replace(trials=row.trials[:count]) for row in doc.rows)
        found = FROM_RESULTS["S2-43"](Made(doc.replace(rows=rows)))
        assert found.verdict == ("undecided" if count else "no verdict")
    later = FROM_RESULTS["S2-43"](Made(doc.replace(epochs=5)))
    assert (later.verdict, later.setting) == ("holds", "after 5 epochs")


def test_without_results_nothing_that_needs_them_has_a_verdict():
    nothing = Made()
    assert {judge(nothing).verdict for judge in FROM_RESULTS.values()} == {"no verdict"}
