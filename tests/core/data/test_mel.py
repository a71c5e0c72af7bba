"""The log-mel front end equals a plain NumPy reference and keeps the energy of a sound."""

import math

import numpy as np
import torch
from torch.testing import assert_close

from vitcli.core.data import mel


def reference(sound: np.ndarray) -> np.ndarray:
    """The log-mel spectrogram (M, F) of a sound (T,), frame by frame and sum by sum in float64."""
    half = mel.WINDOW // 2
    padded = np.concatenate([np.zeros((mel.WINDOW - mel.HOP) // 2), sound, np.zeros(mel.WINDOW)])
    steps = np.arange(mel.WINDOW)
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * steps / mel.WINDOW)
    top = 2595 * math.log10(1 + mel.RATE / 2 / 700)
    edges = [
        700 * (10 ** (top * i / (mel.NUM_BANDS + 1) / 2595) - 1) for i in range(mel.NUM_BANDS + 2)
    ]
    found = np.zeros((mel.NUM_BANDS, mel.NUM_FRAMES))
    for f in range(mel.NUM_FRAMES):
        frame = padded[f * mel.HOP : f * mel.HOP + mel.WINDOW] * hann
        turns = np.exp(-2j * np.pi * np.outer(np.arange(half + 1), steps) / mel.WINDOW)
        power = np.abs(turns @ frame) ** 2
        for m in range(mel.NUM_BANDS):
            low, peak, high = edges[m : m + 3]
            for k in range(half + 1):
                hertz = k * mel.RATE / mel.WINDOW
                rise, fall = (hertz - low) / (peak - low), (high - hertz) / (high - peak)
                found[m, f] += max(0.0, min(rise, fall)) * power[k]
    return np.log(found + mel.FLOOR)


def test_it_equals_the_plain_reference():
    sound = mel.unit_rms(torch.randn(1, mel.NUM_SAMPLES))
    wanted = torch.from_numpy(reference(sound[0].double().numpy())).float()
    assert_close(mel.log_mel(sound)[0], wanted, rtol=0, atol=1e-5)


def test_loudness_has_no_effect_and_silence_is_zero():
    sounds = torch.randn(2, mel.NUM_SAMPLES)
    one, other = (mel.spectrograms(mel.unit_rms(x)) for x in (sounds, 0.01 * sounds))
    assert one.shape == (2, 1, *mel.SHAPE)
    assert_close(one, other, rtol=0, atol=1e-4)
    assert_close(one.mean((1, 2, 3)), torch.zeros(2), rtol=0, atol=1e-5)
    silence = mel.unit_rms(torch.zeros(1, mel.NUM_SAMPLES))
    assert mel.spectrograms(silence).abs().max() < 1e-2
