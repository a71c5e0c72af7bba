"""The contrastive loss against its definition, and its floor."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from vitcli.core.objectives.clip.contrastive import (
    contrastive_loss,
    ensemble,
    loss_floor,
)


@pytest.fixture
def batch():
    images, texts = (F.normalize(torch.randn(6, 4, dtype=torch.float64), dim=1) for _ in "ab")
    return images, texts, torch.tensor(7.0, dtype=torch.float64)


def test_different_captions_give_the_loss_of_clip(batch):
    images, texts, scale = batch
    logits = scale * images @ texts.T
    own = torch.arange(6)
    wanted = (F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own)) / 2
    assert_close(contrastive_loss(images, texts, scale, own), wanted)


def test_equal_captions_share_the_target(batch):
    images, texts, scale = batch
    caption = torch.tensor([0, 1, 0, 1, 1, 2])
    wanted = 0.0
    logits = (scale * images @ texts.T).tolist()
    for i in range(6):
        same = [j for j in range(6) if caption[j] == caption[i]]
        across = math.log(sum(math.exp(logits[i][j]) for j in range(6)))
        down = math.log(sum(math.exp(logits[j][i]) for j in range(6)))
        wanted -= sum(logits[i][j] - across + logits[j][i] - down for j in same) / len(same) / 12
    assert_close(contrastive_loss(images, texts, scale, caption).item(), wanted)


def test_the_floor_is_reached_by_the_best_model_and_not_passed():
    subject = torch.tensor([0, 0, 0, 1, 1, 2, 3, 3])
    perfect = F.one_hot(subject).double()
    scale = torch.tensor(1000.0, dtype=torch.float64)
    floor = loss_floor(subject)
    assert_close(contrastive_loss(perfect, perfect, scale, subject).item(), floor.item())
    assert_close(floor.item(), (3 * math.log(3) + 4 * math.log(2)) / 8)
    templates = torch.arange(8)  # other words for the same subject: the same floor
    assert_close(contrastive_loss(perfect, perfect, scale, templates).item(), floor.item())


def test_an_ensemble_is_the_mean_direction():
    prompts = torch.randn(3, 5, 4)
    unit = prompts / prompts.norm(dim=-1, keepdim=True)
    mean = unit.mean(1)
    assert_close(ensemble(prompts), mean / mean.norm(dim=-1, keepdim=True))
