"""Sounds of a class, their keys and their spectrograms."""

import math

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from vitcli.plugins.fusion import sounds
from vitcli.plugins.fusion.sounds import BANK, NUM_SAMPLES, content_keys, noise, scramble, uniform

ALL = (1 << 64) - 1


def splitmix(key: int) -> int:
    """The last step of SplitMix64, as its authors' C code has it."""
    key = ((key ^ (key >> 30)) * 0xBF58476D1CE4E5B9) & ALL
    key = ((key ^ (key >> 27)) * 0x94D049BB133111EB) & ALL
    return key ^ (key >> 31)


def test_it_is_splitmix():
    keys = torch.tensor([0, 1, -1, 2**62, -(2**63), 123456789])
    found = [value & ALL for value in scramble(keys).tolist()]
    assert found == [splitmix(key & ALL) for key in keys.tolist()]


def test_a_key_depends_on_the_content_only():
    pixels = torch.randint(256, (8, 3, 4, 4), dtype=torch.uint8)
    keys = content_keys(pixels)
    assert len(set(keys.tolist())) == 8
    assert content_keys(pixels.flip(0)).equal(keys.flip(0))
    changed = pixels.clone()
    changed[0, 0, 0, 0] ^= 1
    assert (content_keys(changed) != keys).tolist() == [True] + [False] * 7


def test_numbers_are_uniform():
    found = uniform(scramble(torch.arange(20_000)), 3)
    assert 0 <= found.min() < found.max() < 1
    for column in found.unbind(1):
        counts = torch.histc(column, bins=10, min=0, max=1)
        assert_close(counts, torch.full((10,), 2000.0), rtol=0.1, atol=0)
    assert (torch.corrcoef(found.T) - torch.eye(3)).abs().max() < 0.03


def test_noise_is_white_and_a_function_of_its_key():
    keys = scramble(torch.arange(4))
    found = noise(keys, 4096)
    assert_close(found.std(1), torch.ones(4), rtol=0.05, atol=0)
    assert_close(found.mean(1), torch.zeros(4), rtol=0, atol=0.08)
    assert (torch.corrcoef(found) - torch.eye(4)).abs().max() < 0.08
    assert noise(keys[2:3], 4096).equal(found[2:3])
    assert noise(torch.tensor([BANK - 2]), 4).isfinite().all(), "the bank is a ring"


def reference(sound: np.ndarray) -> np.ndarray:
    """The log-mel spectrogram (M, F) of a sound (T,), frame by frame and sum by sum in float64."""
    half = sounds.WINDOW // 2
    before, after = np.zeros((sounds.WINDOW - sounds.HOP) // 2), np.zeros(sounds.WINDOW)
    padded = np.concatenate([before, sound, after])
    steps = np.arange(sounds.WINDOW)
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * steps / sounds.WINDOW)
    top = 2595 * math.log10(1 + sounds.RATE / 2 / 700)
    edges = 700 * (10 ** (np.linspace(0, top, sounds.NUM_BANDS + 2) / 2595) - 1)
    found = np.zeros((sounds.NUM_BANDS, sounds.NUM_FRAMES))
    for f in range(sounds.NUM_FRAMES):
        frame = padded[f * sounds.HOP : f * sounds.HOP + sounds.WINDOW] * hann
        turns = np.exp(-2j * np.pi * np.outer(np.arange(half + 1), steps) / sounds.WINDOW)
        power = np.abs(turns @ frame) ** 2
        for m in range(sounds.NUM_BANDS):
            low, peak, high = edges[m : m + 3]
            for k in range(half + 1):
                hertz = k * sounds.RATE / sounds.WINDOW
                rise, fall = (hertz - low) / (peak - low), (high - hertz) / (high - peak)
                found[m, f] += max(0.0, min(rise, fall)) * power[k]
    return np.log(found + sounds.FLOOR)


def test_a_spectrogram_equals_the_plain_reference_and_has_no_loudness():
    sound = sounds.unit_rms(torch.randn(1, sounds.NUM_SAMPLES))
    wanted = torch.from_numpy(reference(sound[0].double().numpy())).float()
    assert_close(sounds.log_mel(sound)[0], wanted, rtol=0, atol=1e-5)
    several = torch.randn(2, sounds.NUM_SAMPLES)
    one, other = (sounds.spectrograms(sounds.unit_rms(x)) for x in (several, 0.01 * several))
    assert one.shape == (2, 1, *sounds.SHAPE)
    assert_close(one, other, rtol=0, atol=1e-4)
    assert_close(one.mean((1, 2, 3)), torch.zeros(2), rtol=0, atol=1e-5)
    silence = sounds.unit_rms(torch.zeros(1, sounds.NUM_SAMPLES))
    assert sounds.spectrograms(silence).abs().max() < 1e-2


KEYS = scramble(torch.arange(200))
CLASSES = torch.arange(200) % 10


def test_a_sound_depends_on_its_key_and_class_only():
    keys, classes = KEYS[:40], CLASSES[:40]
    whole = sounds.synthesize(keys, classes, 10, held_out=False)
    assert whole.shape == (40, NUM_SAMPLES)
    assert_close(whole.square().mean(1), torch.ones(40))
    order = torch.randperm(40)[:7]
    some = sounds.synthesize(keys[order], classes[order], 10, held_out=False)
    assert_close(some, whole[order], rtol=0, atol=1e-5)
    other = sounds.synthesize(keys, (classes + 1) % 10, 10, held_out=False)
    assert ((other - whole).square().mean(1) > 0.5).all()


def test_speakers_of_training_and_evaluation_are_disjoint():
    shares = uniform(KEYS, 1)[:, 0]
    here, there = (set(sounds.choose_speakers(shares, held).tolist()) for held in (False, True))
    assert here.isdisjoint(there)
    assert len(here) > 30
    assert len(there) == sounds.HELD_OUT
    voices = sounds.speakers()
    assert len(voices.unique(dim=0)) == len(voices) == sounds.SPEAKERS + sounds.HELD_OUT
    one, other = (sounds.synthesize(KEYS, CLASSES, 10, held_out=held) for held in (False, True))
    assert ((one - other).square().mean(1) > 0.1).float().mean() > 0.9


@pytest.mark.parametrize("num_classes", [1, 2, 10, 16, 17, 100, 1000])
def test_every_class_has_its_own_melody(num_classes):
    found = sounds.melodies(num_classes)
    assert len(found.unique(dim=0)) == num_classes
    assert (found[:, 0] == 0).all(), "the first pitch does not tell the class"


def test_the_number_of_cycles_is_the_integral_of_the_frequency():
    pitches = torch.tensor([[400.0, 800.0, 200.0]])
    place = torch.linspace(0, 1, 20_001)[None]
    found = sounds.cycles(place, pitches, torch.tensor([0.3]))
    half = torch.cat([torch.linspace(400, 800, 10_001), torch.linspace(800, 200, 10_001)[1:]])
    steps = (half[1:] + half[:-1]) / 2 * 0.3 / 20_000
    assert_close(found[0, 1:], steps.double().cumsum(0).float(), rtol=1e-4, atol=1e-2)
