"""Retrieval in a joint space."""

import torch
import torch.nn.functional as F

from vitcli.plugins.clip.clip import distinct, ranks, recall


def test_ranks_count_wrong_items_before_the_best_right_one():
    items = F.normalize(torch.tensor([[1.0, 0.0], [0.9, 0.3], [0.0, 1.0], [0.6, 0.8]]), dim=1)
    of_item = torch.tensor([0, 1, 2, 0])
    queries = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    subject = torch.tensor([0, 1, 2, 0])
    found = ranks(queries, items, subject, of_item)
    assert found.tolist() == [0, 1, 3, 1], "a second item of the subject does not count"
    assert [recall(found, k) for k in (1, 2, 4)] == [0.25, 0.75, 1.0]


def test_equal_vectors_retrieve_nothing_and_portions_have_no_effect(monkeypatch):
    vectors, subject = F.normalize(torch.ones(5, 3), dim=1), torch.arange(5)
    assert ranks(vectors, vectors, subject, subject).tolist() == [4] * 5
    queries, items = torch.randn(10, 3), torch.randn(7, 3)
    subject, of_item = torch.arange(10) % 7, torch.arange(7)
    whole = ranks(queries, items, subject, of_item)
    monkeypatch.setattr("vitcli.plugins.clip.clip.AT_ONCE", 4)
    assert torch.equal(ranks(queries, items, subject, of_item), whole)


def test_equal_numbers_have_one_first_place():
    first, twin = distinct(torch.tensor([7, 2, 7, 7, 2, 9]))
    assert first.tolist() == [1, 0, 5]
    assert twin.tolist() == [1, 0, 1, 1, 0, 2]
