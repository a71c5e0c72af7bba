"""Every metric equals its definition, and only training images choose anything."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from torch import Tensor, nn
from torch.testing import assert_close

from vitcli.core.metrics import knn
from vitcli.core.metrics import linear_probe as probes
from vitcli.core.metrics.classification import (
    Views,
    calibration_error,
    compute_logits,
    measure_logits,
    score,
    wilson_interval,
)
from vitcli.core.metrics.confidence import COVERAGES, fit_temperature, set_threshold


def test_scores_equal_the_result_by_hand():
    logits = torch.tensor([[2.0, 0, 0], [0, 2, 0], [0, 2, 0], [0, 0, 2]])
    scores = score(logits, torch.tensor([0, 1, 0, 2]))
    assert scores.accuracy == 0.75
    assert scores.per_class == (0.5, 1.0, 1.0)
    assert scores.confusion == ((1, 1, 0), (0, 1, 0), (0, 0, 1))
    assert scores.balanced_accuracy == pytest.approx((0.5 + 1 + 1) / 3)
    assert scores.precision == (1, 0.5, 1)
    assert (scores.counts, scores.majority) == ((2, 1, 1), (0, 0.5))
    logits, labels = torch.eye(3)[:2], torch.tensor([0, 1])  # a class without images
    scores = score(logits, labels)
    assert (scores.per_class, scores.balanced_accuracy) == ((1, 1, None), 1)
    assert measure_logits(logits, labels)["macro_f1"] == 1


def test_top5_accuracy_counts_the_five_most_likely_of_six_classes_or_more():
    logits = torch.arange(6.0).repeat(4, 1)  # class 0 is the least likely
    assert measure_logits(logits, torch.tensor([0, 1, 2, 5]))["top5_accuracy"] == 0.75
    assert "top5_accuracy" not in measure_logits(torch.eye(5), torch.arange(5))


@pytest.mark.parametrize(("hits", "trials"), [(0, 10), (7, 10), (9000, 10_000), (10, 10)])
def test_the_interval_equals_wilson_by_scipy(hits, trials):
    theirs = stats.binomtest(hits, trials).proportion_ci(method="wilson")
    assert wilson_interval(hits, trials) == pytest.approx((theirs.low, theirs.high), abs=1e-6)


def test_calibration_error_is_the_gap_between_confidence_and_accuracy():
    sure = torch.tensor([[0.9, 0.1]]).log().repeat(10, 1)
    labels = torch.tensor([0] * 6 + [1] * 4)
    assert calibration_error(sure, labels) == pytest.approx(0.3, abs=1e-6)
    labels = torch.tensor([0] * 9 + [1])
    assert calibration_error(sure, labels) == pytest.approx(0.0, abs=1e-6)
    doubtful = torch.cat([sure, torch.tensor([[0.6, 0.4]]).log().repeat(10, 1)])
    labels = torch.tensor([0] * 6 + [1] * 4 + [0] * 9 + [1])  # -0.3 in one bin, +0.3 in another
    assert calibration_error(doubtful, labels) == pytest.approx(0.3, abs=1e-6)


@pytest.mark.parametrize("true", [0.4, 1.0, 3.0])
def test_labels_that_follow_a_temperature_give_it_back(true):
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(40_000, 6, generator=generator, dtype=torch.float64)
    labels = (logits / true).softmax(1).multinomial(1, generator=generator)[:, 0]
    found = fit_temperature(logits, labels)
    assert found == pytest.approx(true, rel=0.05)
    losses = [F.cross_entropy(logits / (found * factor), labels) for factor in (0.98, 1.0, 1.02)]
    assert losses[1] == min(losses)
    if true > 1:
        before, after = (calibration_error(each, labels) for each in (logits, logits / found))
        assert after < 0.01 < before
    for shift in (0, 1):  # always right or always wrong
        assert fit_temperature(10 * torch.eye(4), (torch.arange(4) + shift) % 4) is None


@pytest.mark.parametrize(
    ("num_wrong", "scale", "is_fitted"),
    [(0, 1, False), (1, 1, False), (9, 1, False), (10, 1, True), (1, 40, True), (9, 40, True)],
)
def test_few_wrong_answers_make_no_classifier_surer(num_wrong, scale, is_fitted):
    """Of 100 right ones: logits of 0 and 1 are too unsure, of 0 and 40 too sure."""
    labels = torch.tensor([0] * 100 + [1] * num_wrong)
    logits = scale * torch.tensor([[1.0, 0.0]]).repeat(len(labels), 1)
    temperature = fit_temperature(logits, labels)
    assert (temperature is not None) == is_fitted
    if temperature is not None:
        assert scale / temperature == pytest.approx(math.log(100 / num_wrong), rel=1e-6)


@pytest.mark.parametrize("coverage", COVERAGES[:3])
def test_the_coverage_of_prediction_sets_is_beta_for_a_misfit_classifier(coverage):
    count, generator = 50, torch.Generator().manual_seed(0)
    truth = 2 * torch.randn(50_000, 5, generator=generator)
    labels = truth.softmax(1).multinomial(1, generator=generator)[:, 0]
    logits = 3 * truth + torch.tensor([2.0, 0, 0, 0, -2])  # too sure, and too often class 0
    shares = logits.double().softmax(1).gather(1, labels[:, None])[:, 0].sort().values
    drawn = torch.randint(len(labels), (2000, count), generator=generator)
    found = [set_threshold(logits[index], labels[index], coverage) for index in drawn]
    missed = torch.searchsorted(shares, torch.tensor(found, dtype=torch.float64))
    covered = 1 - missed.double() / len(shares)
    error = 3 * covered.std() / len(covered) ** 0.5
    assert coverage - error < covered.mean() < coverage + 1 / (count + 1) + error
    rank = round((count + 1) * coverage + 0.49)
    law = stats.beta(rank, count + 1 - rank)
    assert stats.kstest(covered.numpy(), law.cdf).pvalue > 0.001


@pytest.mark.parametrize(("coverage", "least"), [(0.8, 4), (0.9, 9), (0.95, 19), (0.99, 99)])
def test_a_set_has_all_classes_with_too_few_images(coverage, least):
    logits, labels = torch.eye(2).repeat(50, 1), torch.arange(100) % 2
    found = [set_threshold(logits[:n], labels[:n], coverage) for n in (least - 1, least)]
    assert found == pytest.approx([0, 1 / (1 + math.exp(-1))])


def blobs(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return features (N, 8) around three directions, and the index of the direction."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 3
    noise = 0.2 * torch.randn(count, 8, generator=generator)
    return torch.eye(8)[labels] + noise, labels


def test_neighbours_vote_as_in_a_double_loop(monkeypatch):
    monkeypatch.setattr(knn, "NEIGHBOURS", 4)
    monkeypatch.setattr(knn, "TEMPERATURE", 0.5)
    train, labels = blobs(30, 0)
    test, _ = blobs(5, 1)
    found = knn.knn_logits(train, labels, test, 3)
    for row, query in zip(found, test, strict=True):
        similar = torch.cosine_similarity(query[None], train)
        votes = torch.zeros(3)
        for i in similar.argsort(descending=True)[:4].tolist():
            votes[labels[i]] += ((similar[i] - 1) / 0.5).exp()
        assert_close(row.exp(), votes.clamp(min=torch.finfo(torch.float32).tiny))


def test_an_image_does_not_vote_for_itself(monkeypatch):
    features, labels = blobs(60, 0)
    clean = knn.leave_one_out_knn(features, labels, 3).argmax(1)
    assert (clean == labels).float().mean() > 0.9
    random = torch.randint(3, (60,), generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(knn, "NEIGHBOURS", 1)
    own = knn.knn_logits(features, random, features, 3).argmax(1)
    others = knn.leave_one_out_knn(features, random, 3).argmax(1)
    assert torch.equal(own, random), "the control: the nearest image is the image itself"
    assert not torch.equal(others, random)
    twice, groups = features.repeat(2, 1), torch.arange(60).repeat(2)
    assert torch.equal(knn.leave_one_out_knn(twice, random.repeat(2), 3).argmax(1)[:60], random)
    apart = knn.leave_one_out_knn(twice, random.repeat(2), 3, groups).argmax(1)[:60]
    assert torch.equal(apart, others), "a copy does not vote, either"


def draw(count: int = 300, classes: int = 4, spread: float = 1.0) -> tuple[Tensor, Tensor]:
    """Return features (M, 6) around a mean for each class, and unequal classes (M,)."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.rand(count, generator=generator).pow(1.5).mul(classes).long()
    means = torch.randn(classes, 6, generator=generator, dtype=torch.float64)
    noise = torch.randn(count, 6, generator=generator, dtype=torch.float64)
    return means[labels] + spread * noise, labels


@pytest.mark.parametrize("strength", [1.0, 1e-2, 1e-4])
def test_the_gradient_of_the_objective_is_zero(strength):
    features, labels = draw()
    (layer,) = probes.fit_layers(features, labels, 4, [strength])
    weight, bias = layer[:-1].clone().requires_grad_(), layer[-1].clone().requires_grad_()
    loss = F.cross_entropy(features @ weight + bias, labels)
    (loss + strength / 2 * weight.square().sum()).backward()
    assert weight.grad.abs().max() < 2e-5
    assert bias.grad.abs().max() < 2e-5


def test_the_images_of_a_class_take_turns_in_the_folds():
    labels = torch.tensor([0] * 11 + [1] * 5 + [0] * 4 + [3] * 6)
    fold = probes.folds(labels)
    assert [fold[labels == label].tolist() for label in (0, 1, 3)] == [
        [*range(5), *range(5), *range(5)], [*range(5)], [*range(5), 0]
    ]  # fmt: skip
    assert not probes.folds(torch.tensor([0] * 10 + [1] * 4)).any(), "a class has too few images"


def test_useless_features_have_a_strong_penalty_and_useful_ones_a_weak_one():
    generator = torch.Generator().manual_seed(1)
    features, labels = draw(600, spread=0.3)
    noise = torch.randn(features.shape, generator=generator, dtype=torch.float64)
    useful = probes.linear_probe(features[:400], labels[:400], 4)
    useless = probes.linear_probe(noise[:400], labels[:400], 4)
    assert useless.strength > 10 * useful.strength
    assert useful.is_chosen
    hits = (probes.apply(useful.layer, features[400:]).argmax(1) == labels[400:]).double().mean()
    assert hits > 0.9


def test_an_image_is_judged_by_a_probe_that_has_not_seen_it():
    """Random labels are learned by heart, but not foretold."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(60, 200, generator=generator, dtype=torch.float64)
    labels = torch.arange(60) % 2
    seen = probes.apply(probes.linear_probe(features, labels, 2).layer, features)
    unseen = probes.cross_validated(features, labels, 2)
    assert seen.argmax(1).equal(labels)
    assert (unseen.argmax(1) == labels).double().mean() < 0.75
    assert probes.cross_validated(features[:8], labels[:8], 2) is None


@pytest.mark.parametrize("most", [None, 60])
def test_with_copies_in_one_fold_no_probe_has_seen_an_image_or_chosen_its_strength_on_one(most):
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(40, 100, generator=generator, dtype=torch.float64)
    image = torch.arange(40).repeat_interleave(2)
    features, labels, fold = features[image], image // 20, image % 5
    by_row = probes.cross_validated(features, labels, 2)
    unseen = probes.cross_validated(features, labels, 2, fold=fold, most=most)
    hits = [(logits.argmax(1) == labels).double().mean() for logits in (by_row, unseen)]
    assert hits[0] > 0.9
    assert 0.3 < hits[1] < 0.7
    assert unseen.abs().mean() < 0.2 * by_row.abs().mean(), "the penalty is strong"
    assert probes.cross_validated(features, labels, 2, fold=fold * 0) is None


def test_out_of_fold_logits_of_a_limited_probe_come_from_fewer_images(monkeypatch):
    sizes = []
    fit = probes.linear_probe

    def watched(train: Tensor, labels: Tensor, *words, **options):
        sizes.append(labels.bincount().tolist())
        return fit(train, labels, *words, **options)

    monkeypatch.setattr(probes, "linear_probe", watched)
    labels = torch.arange(2).repeat_interleave(50)
    features = torch.randn(100, 3) + labels[:, None]
    found = probes.cross_validated(features, labels, 2, most=40)
    assert found.abs().min() > 0, "every image has an answer"
    assert sizes == [[20, 20]] * 5


def test_scales_shifts_and_constant_features_do_not_matter():
    features, labels = draw()
    scale = torch.tensor([1e-3, 1, 10, 1e3, 1, 1], dtype=torch.float64)
    moved = torch.cat([features * scale + 7, torch.full((len(features), 1), 5.0).double()], 1)
    found = []
    for changed in (features, moved):
        probe = probes.linear_probe(changed[:200], labels[:200], 4)
        found.append(probes.apply(probe.layer, changed[200:]))
    assert_close(*found, atol=1e-3, rtol=1e-3)


def test_few_labels_have_the_default_strength():
    features, labels = draw(40, 2)
    few = torch.cat([(labels == label).nonzero().flatten()[:3] for label in (0, 1)])
    found = probes.linear_probe(features[few], labels[few], 2)
    assert (found.strength, found.is_chosen) == (probes.DEFAULT_STRENGTH, False)
    assert found.layer.isfinite().all()


@pytest.mark.parametrize("tta", ["mirror", "shift"])
def test_views_average_probabilities_and_keep_the_mode(tta):
    model, images = nn.Flatten(), torch.randn(3, 1, 4, 5)
    logits = compute_logits(Views(model, tta), [{"images": images}])
    wide = np.pad(images.numpy(), [(0, 0), (0, 0), (1, 1), (1, 1)], mode="reflect")
    around = [wide[..., :4, :5], wide[..., 2:, 2:]]
    shares = [(images.numpy(), 1.0)]
    if tta == "shift":
        shares = [(images.numpy(), 0.5), *((view, 0.25) for view in around)]
    expected = sum(
        share / 2 * torch.from_numpy(side.reshape(3, -1).copy()).softmax(-1)
        for view, share in shares
        for side in (view, view[..., ::-1])
    )
    assert_close(logits.exp(), expected)
    assert model.training
