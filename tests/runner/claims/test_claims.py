"""Every claim has a verdict that follows, and that could be another one."""

import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import typer

from vitcli.cli.attn_map import parse_point
from vitcli.cli.main import app
from vitcli.runner.claims import by_figures, by_studies, computed
from vitcli.runner.claims.by_computation import COMPUTATIONS
from vitcli.runner.claims.by_results import FROM_RESULTS
from vitcli.runner.claims.judge import ITEMS, judge, read_recorded, select
from vitcli.runner.claims.result_files import Results
from vitcli.runner.experiment.config import find_experiment
from vitcli.runner.study.result import StudyResult
from vitcli.runner.study.statistics import compare
from vitcli.runner.study.table import read_document

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "experiments" / "results"
JUDGED = select([])
RANDOM: dict[str, Any] = {"random_overlaps": lambda layers, width, heads: [0.24, 0.26]}
WORD = re.compile(r"[-+]?\d[\d,]*(\.\d+)?(e-?\d+)?")
"""A number in a text."""
ERRORS: dict[str, float] = {"output": 1.0, "equivariant": 0.0, "pooled": 0.0, "positions": 1.0}


def test_every_item_of_the_sources_is_listed_once():
    expected = [f"S{s}-{i:02}" for s, count in enumerate((25, 22, 77)) for i in range(1, count + 1)]
    assert list(ITEMS) == expected
    assert len(JUDGED) == 41


def test_every_claim_names_what_would_refute_it_and_has_one_judge():
    assert all(bool(item.test) == item.is_judged for item in ITEMS.values())
    assert sorted([*COMPUTATIONS, *FROM_RESULTS]) == [item.id for item in JUDGED]
    assert list(read_recorded()) == [item.id for item in JUDGED]


@pytest.mark.parametrize("item", JUDGED, ids=lambda item: item.id)
def test_the_recorded_verdict_follows(item):
    found, recorded = judge(item, RESULTS), read_recorded()[item.id]
    assert found is not None
    if item.id in COMPUTATIONS:  # the last digits differ between machines
        assert found.verdict == recorded.verdict
        assert WORD.sub("", found.found) == WORD.sub("", recorded.found)
        assert numbers(found.found) == pytest.approx(numbers(recorded.found), rel=0.1, abs=0.011)
    else:
        assert found == recorded
    assert recorded.verdict != "no verdict" or len(recorded.found) > 20, "the reason"


def numbers(text: str) -> list[float]:
    return [float(found[0].replace(",", "")) for found in WORD.finditer(text)]


@pytest.mark.parametrize("item", ITEMS.values(), ids=lambda item: item.id)
def test_every_command_exists(item):
    command, words = typer.main.get_command(app), shlex.split(item.command)[1:]
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    assert not hasattr(command, "commands") or command.invoke_without_command, item.command
    options = {name for parameter in command.params for name in parameter.opts}
    assert {word for word in words if word.startswith("-")} <= options
    if command.name in ("train", "ablate", "search") and words and words[0][0] != "-":
        assert find_experiment(words[0])
    if "--query" in words:
        point = parse_point(words[words.index("--query") + 1])
        assert point is not None
        assert all(0 <= share <= 1 for share in point)
    if command.name == "claims":
        assert {word for word in words if word not in options} <= set(ITEMS)


@pytest.mark.parametrize(
    ("name", "changes", "verdict"),
    [
        ("S0-07", {"misordered_share": lambda **kinds: 0.0}, "holds"),
        ("S0-07", {"misordered_share": lambda **kinds: 0.1}, "refuted"),
        ("S0-08", {"score_variance": lambda width: (width, width / 16)}, "refuted"),
        ("S0-09", {"softmax_extremes": lambda: (0.01, 0.0)}, "refuted"),
        ("S0-09", {"softmax_extremes": lambda: (0.0, -0.1)}, "refuted"),
        ("S0-11", {"reach_of_attention": lambda: 0.5}, "refuted"),
        ("S0-17", {"gradient_shares": lambda residual, norm: [1.0, 1.1]}, "refuted"),
        (
            "S0-17",
            {
                "gradient_shares": lambda residual, norm: [
                    1.0 + ((residual, norm) == ("add", "none"))
                ]
            },
            "in part",
        ),
        ("S0-18", {"readable_shares": lambda r: [0.5, 0.6, 0.7 + (r == "none")]}, "undecided"),
        ("S0-18", {"readable_shares": lambda r: [0.5, 0.6 - (r == "add") / 9, 0.7]}, "undecided"),
        ("S0-18", {"readable_shares": lambda r: [0.1 + (r == "none"), 0.1, 0.2]}, "undecided"),
        ("S0-18", {"readable_shares": lambda r: [0.1 + (r == "none")] * 3}, "refuted"),
        ("S0-19", {"_spec": lambda name: OtherSpec, "parameters": lambda name: 140618}, "refuted"),
        ("S0-21", {"parameters": lambda name: 140619}, "refuted"),
        ("S1-01", {"reach_of_convolution": lambda: (0.2, 12, 0)}, "refuted"),
        ("S1-01", {"reach_of_convolution": lambda: (0.2, 9, 1)}, "refuted"),
        ("S1-09", {"score_variance": lambda width, variance=1: (64, variance)}, "holds"),
        ("S1-09", {"score_variance": lambda width, variance=1: (64, 8)}, "refuted"),
        ("S1-21", {"norm_errors": lambda norm: {"alone": 0, "padded": 0, "divided": 0}}, "refuted"),
        ("S2-09", {"attention_exponents": lambda: (1.5, 1.0)}, "refuted"),
        ("S2-12", {"head_overlaps": lambda weights, heads: [0.8, 0.9, 0.85], **RANDOM}, "refuted"),
        (
            "S2-12",
            {"head_overlaps": lambda w, heads: [0.5, 0.62, 0.8], **RANDOM},
            "undecided",
        ),
        ("S2-21", {"permutation_errors": lambda: ERRORS | {"output": 0.0}}, "holds"),
        ("S2-21", {"permutation_errors": lambda: ERRORS | {"pooled": 0.1}}, "refuted"),
        ("S2-27", {"_spec": lambda name: OtherSpec}, "refuted"),
        ("S2-33", {"parameters": lambda name: 5_700_000}, "holds"),
        ("S2-45", {"rate_of_report": lambda: (0.001, 300)}, "holds"),
    ],
)
def test_other_numbers_give_another_verdict(monkeypatch, name, changes, verdict):
    from vitcli.runner.claims import by_computation

    for function, value in changes.items():
        place = by_computation if hasattr(by_computation, function) else computed
        monkeypatch.setattr(place, function, value)
    assert COMPUTATIONS[name]().verdict == verdict


class OtherSpec:
    """Another model: 6 layers of width 32 with 8x8 patches."""

    depth, embed_dim, img_size, patch_size = 6, 32, (32, 32), 8


def study(name: str, base: float, **rows: float) -> StudyResult:
    """A result of three seeds with these accuracies in percent; a seed adds up to 0.2 points."""
    template = read_document((RESULTS / "ablation-cifar10-tiny.json").read_text())
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


@pytest.mark.parametrize(
    ("rows", "verdict"),
    [
        ({"no_residual": 50.0}, "holds"),
        ({"no_residual": 70.0}, "refuted"),
        ({"no_residual": 60.0}, "undecided"),
        ({"other": 50.0}, "no verdict"),
    ],
)
def test_a_claim_about_a_loss_follows_from_the_interval(rows, verdict):
    made = Made(study("ablation-cifar10-tiny", 60.0, **rows))
    assert FROM_RESULTS["S0-16"](made).verdict == verdict


@pytest.mark.parametrize(
    ("scores", "verdict"),
    [
        ((40, 50, 60, 70, 80), "holds"),
        ((80, 50, 60, 70, 75), "refuted"),
        ((40, 50, 60, 70, 70), "undecided"),
    ],
)
def test_the_ranking_follows_from_paired_differences_of_neighbours(scores, verdict):
    names = (name.replace("-", "_") for name in by_studies.ORDER)
    made = Made(study("ablation-cifar10-tiny", 90.0, **dict(zip(names, scores, strict=True))))
    assert FROM_RESULTS["S2-51"](made).verdict == verdict


@pytest.mark.parametrize(
    ("vit", "behind", "competitive"),
    [(50.0, "holds", "refuted"), (70.0, "refuted", "holds"), (60.0, "undecided", "undecided")],
)
def test_a_vit_behind_a_resnet_is_not_competitive(vit, behind, competitive):
    made = Made(study("classification-cifar10-short", 60.0, vit_small=vit))
    assert FROM_RESULTS["S2-41"](made).verdict == behind
    assert FROM_RESULTS["S2-02"](made).verdict == competitive


def patches(scores: tuple[float, ...], costs: tuple[int, ...] = (4, 8, 2, 1)) -> Made:
    """A study of patch sizes with these accuracies for 2, 8 and 16 pixels; 4 pixels have 60 %."""
    names = ("patch_2", "patch_8", "patch_16")
    doc = study("ablation-patch-size", 60.0, **dict(zip(names, scores, strict=True)))
    rows = [
        row.replace(forward_flops=count, variant=row.variant.replace("baseline", "patch-4"))
        for row, count in zip(doc.rows, costs, strict=True)
    ]
    return Made(doc.replace(rows=tuple(rows)))


@pytest.mark.parametrize(
    ("scores", "verdict"),
    [
        ((70, 50, 40), "holds"),
        ((50, 70, 80), "refuted"),
        ((60, 70, 80), "in part"),
        ((50, 50, 40), "in part"),
        ((60, 50, 40), "in part"),
        ((60, 60, 60), "in part"),
    ],
)
def test_larger_patches_are_judged_at_every_size(scores, verdict):
    assert FROM_RESULTS["S2-42"](patches(scores)).verdict == verdict


@pytest.mark.parametrize(
    ("heavy", "verdict"), [(70.0, "holds"), (50.0, "refuted"), (60.0, "undecided")]
)
def test_heavy_augmentation_is_compared_with_none(heavy, verdict):
    made = Made(study("ablation-augmentation", 60.0, none=60.0, other=1.0, heavy=heavy))
    assert FROM_RESULTS["S2-43"](made).verdict == verdict


@pytest.mark.parametrize(
    ("scores", "verdict"),
    [
        ((70, 70), "holds"),
        ((70, 60), "in part"),
        ((60, 60), "undecided"),
        ((50, 60), "refuted"),
    ],
)
def test_contrastive_training_must_win_with_few_labels(scores, verdict):
    names = ("study-pretraining-100", "study-pretraining")
    made = [study(name, 60.0, clip=score) for name, score in zip(names, scores, strict=True)]
    assert FROM_RESULTS["S2-61"](Made(*made)).verdict == "no verdict"
    everything = study("study-pretraining-all", 60.0, clip=60.0)
    assert FROM_RESULTS["S2-61"](Made(*made, everything)).verdict == verdict


@pytest.mark.parametrize(
    ("costs", "verdict"),
    [
        ((4, 8, 2, 1), "holds"),
        ((4, 8, 9, 1), "refuted"),
        ((4, 8, 5, 1), "refuted"),
        ((4, 3, 2, 1), "refuted"),
    ],
)
def test_larger_patches_must_cost_less(costs, verdict):
    assert FROM_RESULTS["S2-42"](patches((70, 50, 40), costs)).verdict == verdict


@pytest.mark.parametrize(
    ("changes", "where", "text"),
    [
        ({"p_holm": 0.04}, "above", "+1.00 [+0.20, +1.80] points, p = 0.040"),
        ({"p_holm": 0.0004}, "above", "+1.00 [+0.20, +1.80] points, p < 0.001"),
        ({"p_holm": 0.06}, "around", "+1.00 [+0.20, +1.80] points, p = 0.060"),
        ({"p_holm": None}, "around", "+1.00 [\u22120.50, +2.50] points"),
        ({"p_holm": None, "joint_low": 0.1}, "above", "+1.00 [+0.10, +2.50] points"),
        ({"difference": None}, "around", None),
    ],
)
def test_a_side_is_decided_as_in_the_table_of_the_study(changes, where, text):
    row = compare(study("ablation-norm", 60.0, other=60.0))[1]
    known = {"difference": 1.0, "ci_low": 0.2, "ci_high": 1.8, "joint_low": -0.5, "joint_high": 2.5}
    row = replace(row, **known | changes)
    assert by_studies.side(row) == where
    assert text is None or by_studies.difference_text(row) == text


@pytest.mark.parametrize(
    ("verdicts", "word"),
    [
        ({"holds"}, "holds"),
        ({"holds", "does not hold"}, "in part"),
        ({"does not hold"}, "refuted"),
    ],
)
def test_what_several_models_show_gives_one_word(verdicts, word):
    assert by_figures._of_claims(verdicts) == word


@pytest.mark.parametrize(
    ("verdicts", "word"),
    [
        ({"replicates", "same"}, "holds"),
        ({"replicates", "not replicated"}, "in part"),
        ({"undecided", "too wide to say"}, "undecided"),
        ({"opposite", "undecided"}, "refuted"),
    ],
)
def test_the_rows_of_a_table_give_one_word(verdicts, word):
    assert by_studies.of_rows(verdicts) == word


def test_without_results_nothing_that_needs_them_has_a_verdict():
    nothing = Made()
    assert {judge(nothing).verdict for judge in FROM_RESULTS.values()} == {"no verdict", "in part"}
    assert judge(ITEMS["S0-16"], None) is None


def test_the_overlap_of_subspaces_has_its_bounds():
    wide = torch.zeros(8, 8)
    wide[:4, :4], wide[4:, :4] = torch.eye(4), torch.randn(4, 4)
    assert computed.head_overlaps([wide], 2) == pytest.approx([1.0])
    assert computed.head_overlaps([torch.eye(8)], 2) == pytest.approx([0.0])
    assert 0.24 < min(computed.random_overlaps(4, 128, 4)) < 0.26


def test_without_branches_a_residual_passes_the_gradient_unchanged(monkeypatch):
    original = computed.small_vit

    def silent(seed: int, **fields: Any) -> Any:
        model = original(seed, **fields)
        with torch.no_grad():
            for parameter in model.blocks.parameters():
                parameter.zero_()
        return model

    monkeypatch.setattr(computed, "small_vit", silent)
    assert computed.gradient_shares("add", "none") == pytest.approx([1.0] * 8)
    assert computed.gradient_shares("none", "none") == [0.0] * 8
