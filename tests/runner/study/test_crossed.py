"""Two-way random effects: by hand, against scipy and known cases, and the scores of test images."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from tests.fabricated_study import make_study
from vitcli.core.spec import TASKS
from vitcli.core.spec.metrics import ACCURACY
from vitcli.runner.run.predictions import read_per_image
from vitcli.runner.study.crossed import Crossed, cross
from vitcli.runner.study.images import ImageScores, contrast, join
from vitcli.runner.study.mean_error import MeanError
from vitcli.runner.study.result import StudyResult
from vitcli.runner.study.significance import detectable, sign_flip_p
from vitcli.runner.study.statistics import compare
from vitcli.runner.study.table import build_details


def random_scores(seeds=5, images=40, *, seed=0, spread=(1.0, 2.0, 0.5)):
    random = np.random.default_rng(seed)
    a, b, e = spread
    own = random.normal(0, a, (seeds, 1)) + random.normal(0, b, (1, images))
    return own + random.normal(0, e, (seeds, images))


def test_mean_squares_by_hand():
    # Rows (1, 3), (5, 11): mean 5, row means 2 and 8, column means 3 and 7.
    found = cross(np.array([[1.0, 3.0], [5.0, 11.0]]))
    # SS seeds 2 (9 + 9) = 36, SS images 2 (4 + 4) = 16, total 16 + 4 + 0 + 36 = 56, rest 4.
    assert (found.mean, found.ms_seeds, found.ms_images, found.ms_residual) == (5, 36, 16, 4)
    # (36 + 16 - 4) / 4 = 12; degrees of freedom 48^2 / (36^2 + 16^2 + 4^2) = 1.469.
    assert (found.variance, found.freedom) == (12.0, pytest.approx(2304 / 1568))


def test_with_one_source_of_chance_it_is_the_t_interval():
    values = np.array([1.0, 2.0, 4.0, 5.5])
    only_seeds = np.repeat(values[:, None], 50, axis=1)
    t = stats.ttest_1samp(values, 0).confidence_interval()
    assert cross(only_seeds).interval(0.05) == pytest.approx((t.low, t.high))
    only_images = np.repeat(random_scores(1, 300), 4, axis=0)
    t = stats.ttest_1samp(only_images[0], 0).confidence_interval()
    assert cross(only_images).interval(0.05) == pytest.approx((t.low, t.high))


def test_equal_scores_have_no_error():
    found = cross(np.full((3, 10), 7.0))
    assert (found.mean, found.error, found.freedom) == (7.0, 0.0, 2.0)
    assert found.interval(0.05) == MeanError.of_images(found).interval(0.05) == (7.0, 7.0)


def test_the_detectable_difference_includes_the_test_images():
    random, pairs, images, error = np.random.default_rng(0), 8, 10_000, 0.5
    size, found = detectable(1.0, pairs, 1, images_error=error), []
    for moved in random.normal(size, error, 300):
        differences = random.normal(moved, 1, pairs)
        crossed = Crossed(
            num_seeds=pairs,
            num_images=images,
            mean=differences.mean(),
            ms_seeds=images * differences.var(ddof=1),
            ms_images=1 + pairs * images * error**2,
            ms_residual=1,
        )
        tail = MeanError.of_images(crossed).tail
        found.append(max(2 * tail(crossed.mean), sign_flip_p(differences)) <= 0.05)
    assert np.mean(found) == pytest.approx(0.8, abs=0.06)


def save(path: Path, right: list[bool], label: int = 1) -> Path:
    labels = np.full(len(right), label)
    logits = np.zeros((len(right), 3))
    logits[np.arange(len(right)), np.where(right, label, 0)] = 1
    np.savez(path, logits=logits, labels=labels)
    return path


def test_scores_are_read_from_whole_and_from_condensed_predictions(tmp_path):
    row = TASKS["classify"]
    whole = save(tmp_path / "a.npz", [True, False, True])
    np.savez(
        tmp_path / "b.npz", label=np.array([1, 1, 1], np.uint8), prediction=np.array([1, 2, 0])
    )
    found = join({0: read_per_image(whole, row), 1: read_per_image(tmp_path / "b.npz", row)}, row)
    assert {seed: each.tolist() for seed, each in found.by_seed.items()} == {
        0: [100, 0, 100],
        1: [100, 0, 0],
    }
    np.savez(tmp_path / "c.npz", masked_mse=np.array([0.5, 0.25]))
    mae = TASKS["mae"]
    errors = join({0: read_per_image(tmp_path / "c.npz", mae)}, mae)
    assert (errors.by_seed[0].tolist(), errors.labels.tolist()) == ([0.5, 0.25], [])


def test_predictions_that_do_not_fit_together_give_no_scores(tmp_path):
    row, good = TASKS["classify"], save(tmp_path / "a.npz", [True, False])
    other = save(tmp_path / "b.npz", [True, False], label=2)
    for path in (other, save(tmp_path / "d.npz", [True])):
        found = {0: read_per_image(good, row), 1: read_per_image(path, row)}
        assert join(found, row).by_seed == {}
    assert join({0: read_per_image(good, row), 1: None}, row).by_seed == {}


def test_a_contrast_names_the_lost_images_and_the_classes():
    labels = np.array([0, 0, 1, 1])
    base = ImageScores({0: np.array([100.0, 100, 100, 0]), 1: np.array([100.0, 100, 0, 0])}, labels)
    ours = ImageScores({0: np.array([0.0, 100, 100, 100]), 1: np.array([0.0, 0, 0, 100])}, labels)
    found = contrast(ours, base, ACCURACY)
    assert found is not None
    assert (found.only_baseline, found.only_variant) == (1, 1)
    assert found.examples == (0, 1)
    assert found.by_class == (-75.0, 50.0)
    assert found.crossed.mean == -12.5
    assert contrast(ours, ImageScores(base.by_seed, labels[::-1]), ACCURACY) is None
    assert contrast(ImageScores({0: ours.by_seed[0]}, labels), base, ACCURACY) is None


def with_images(noise: float) -> StudyResult:
    """Return a study whose variant loses 1 point with every seed, on images that vary."""
    doc = make_study({"base": [0.9] * 8, "less": [0.89] * 8})
    random = np.random.default_rng(0)
    scores = np.repeat(random.normal(0, noise, (1, 400)), 8, axis=0)
    scores += -1 - scores.mean()
    images = ImageScores(dict(enumerate(scores)))
    zero = ImageScores({seed: 0 * row for seed, row in enumerate(scores)})
    less = doc.rows[1].replace(contrast=contrast(images, zero, ACCURACY), images=images.crossed())
    return doc.replace(rows=(doc.rows[0], less))


def test_lost_and_won_images_are_those_of_right_and_wrong_answers():
    doc, name = with_images(5), "lost and won images"
    rows = []
    for row in doc.rows:
        trials = [each.replace(measured={"test_masked_mse": 0.5}) for each in row.trials]
        rows.append(row.replace(trials=tuple(trials)))
    errors = doc.replace(task="mae", rows=tuple(rows))
    assert compare(errors)[1].with_images
    for each, has_column in ((doc, True), (errors, False)):
        assert (name in [column.header for column in build_details(each).columns]) is has_column


def test_a_difference_must_also_hold_for_other_test_images():
    clear, vague = (compare(with_images(noise))[1] for noise in (5, 20))
    assert clear.p == 2 / 2**8  # the sign flips are the weaker test
    assert vague.p == pytest.approx(2 * stats.t.sf(20**0.5 / 20 * 20**0.5, 399), abs=0.02)
    assert (clear.effect, vague.effect) == ("worse", "undecided")
    assert clear.with_images
    assert clear.ci_high < 0 < vague.ci_high
    again = StudyResult.model_validate(json.loads(with_images(5).model_dump_json()))
    assert again == with_images(5)
