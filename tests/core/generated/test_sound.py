"""Generated sounds: functions of key and class, with other speakers in training than in tests."""

import pytest
import torch
from torch.testing import assert_close

from vitcli.core.data.keys import scramble, uniform
from vitcli.core.data.mel import NUM_SAMPLES
from vitcli.core.generated import sound

KEYS = scramble(torch.arange(200))
CLASSES = torch.arange(200) % 10


def test_a_sound_depends_on_its_key_and_class_only():
    whole = sound.synthesize(KEYS, CLASSES, 10, held_out=False)
    assert whole.shape == (200, NUM_SAMPLES)
    assert_close(whole.square().mean(1), torch.ones(200))
    order = torch.randperm(200)[:7]
    some = sound.synthesize(KEYS[order], CLASSES[order], 10, held_out=False)
    assert_close(some, whole[order], rtol=0, atol=1e-5)
    other = sound.synthesize(KEYS, (CLASSES + 1) % 10, 10, held_out=False)
    assert ((other - whole).square().mean(1) > 0.5).all()


def test_speakers_of_training_and_evaluation_are_disjoint():
    shares = uniform(KEYS, 1)[:, 0]
    here, there = (set(sound.choose_speakers(shares, held).tolist()) for held in (False, True))
    assert here.isdisjoint(there)
    assert len(here) > 30
    assert len(there) == sound.HELD_OUT
    voices = sound.speakers()
    assert len(voices.unique(dim=0)) == len(voices) == sound.SPEAKERS + sound.HELD_OUT
    one, other = (sound.synthesize(KEYS, CLASSES, 10, held_out=held) for held in (False, True))
    assert ((one - other).square().mean(1) > 0.1).float().mean() > 0.9


@pytest.mark.parametrize("num_classes", [1, 2, 10, 16, 17, 100, 1000])
def test_every_class_has_its_own_melody(num_classes):
    found = sound.melodies(num_classes)
    assert len(found.unique(dim=0)) == num_classes
    assert (found[:, 0] == 0).all(), "the first pitch does not tell the class"


def test_the_number_of_cycles_is_the_integral_of_the_frequency():
    pitches = torch.tensor([[400.0, 800.0, 200.0]])
    place = torch.linspace(0, 1, 20_001)[None]
    found = sound.cycles(place, pitches, torch.tensor([0.3]))
    half = torch.cat([torch.linspace(400, 800, 10_001), torch.linspace(800, 200, 10_001)[1:]])
    steps = (half[1:] + half[:-1]) / 2 * 0.3 / 20_000
    assert_close(found[0, 1:], steps.double().cumsum(0).float(), rtol=1e-4, atol=1e-2)
