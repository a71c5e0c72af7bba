"""Probes of frozen features."""

import torch

from vitcli.core.metrics.knn import knn_logits, leave_one_out_knn


def blobs(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return features (N, 8) around three directions, and the index of the direction."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 3
    noise = 0.2 * torch.randn(count, 8, generator=generator)
    return torch.eye(8)[labels] + noise, labels


def test_neighbours_vote_as_in_a_double_loop():
    train, labels = blobs(30, 0)
    test, _ = blobs(5, 1)
    found = knn_logits(train, labels, test, 3, neighbours=4, temperature=0.5)
    for row, query in zip(found, test, strict=True):
        similar = torch.cosine_similarity(query[None], train)
        votes = torch.zeros(3)
        for i in similar.argsort(descending=True)[:4].tolist():
            votes[labels[i]] += ((similar[i] - 1) / 0.5).exp()
        torch.testing.assert_close(row.exp(), votes.clamp(min=torch.finfo(torch.float32).tiny))


def test_an_image_does_not_vote_for_itself():
    features, labels = blobs(60, 0)
    clean = leave_one_out_knn(features, labels, 3).argmax(1)
    assert (clean == labels).float().mean() > 0.9
    random = torch.randint(3, (60,), generator=torch.Generator().manual_seed(0))
    own = knn_logits(features, random, features, 3, neighbours=1).argmax(1)
    others = leave_one_out_knn(features, random, 3, neighbours=1).argmax(1)
    assert torch.equal(own, random), "the control: the nearest image is the image itself"
    assert not torch.equal(others, random)
