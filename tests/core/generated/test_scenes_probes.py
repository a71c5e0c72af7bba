"""Only two-dimensional structure solves ``scenes``: simpler clues are tried on every change."""

import pytest

from tests.core.generated import probes
from vitcli.core.generated.scenes import scenes
from vitcli.core.generated.shapes import shapes

MOST = 0.40
"""Highest accuracy that a probe may reach over the ten classes."""
MOST_WITHIN_PAIRS = 0.55
"""Highest accuracy that a probe may reach if the pair is known; chance is 0.5."""


@pytest.fixture(scope="module")
def data():
    return scenes()


def assert_weak(scores):
    for name, score in scores.items():
        assert score.accuracy <= MOST, name
        assert score.within_pairs <= MOST_WITHIN_PAIRS, name


def test_no_profile_of_rows_or_columns_shows_the_class(data):
    assert_weak(probes.probe_profiles(data))


def test_all_profiles_together_do_not_show_the_class_of_a_pair(data):
    assert probes.probe_all_profiles(data).within_pairs <= MOST_WITHIN_PAIRS


def test_no_statistic_of_colours_shows_the_class(data):
    assert_weak(probes.probe_colors(data))


def test_no_linear_model_on_pixels_shows_the_class(data):
    assert_weak(probes.probe_pixels(data))


def test_a_bag_of_patches_shows_the_pair_and_not_the_class(data):
    score = probes.probe_patches(data)
    assert score.pairs >= 0.6, "the probe learns too little to prove anything"
    assert score.within_pairs <= MOST_WITHIN_PAIRS


def test_the_same_probes_solve_much_of_shapes():
    _, score = probes.best(probes.probe_profiles(shapes()))
    assert score.accuracy >= 0.7, "the probe learns too little to prove anything"
