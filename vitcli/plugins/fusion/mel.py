"""Log-mel spectrograms of short sounds, in plain torch.

Axes: B batch, T samples, F frames, K frequencies of the Fourier transform, M mel bands.
"""

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

RATE = 8000
"""Samples per second of every sound."""
NUM_SAMPLES = 4096
"""Samples of every sound: 0.512 s."""
WINDOW, HOP = 256, 128
"""Length of a frame, and distance between frames, in samples: 32 ms and 16 ms."""
NUM_BANDS = 32
NUM_FRAMES = NUM_SAMPLES // HOP
SHAPE = (NUM_BANDS, NUM_FRAMES)
"""Shape of a spectrogram; as an image it has one channel."""
FLOOR = 1e-3
"""Added to the energy of a band before the logarithm. A sound has an RMS of 1."""


@cache
def _window_and_bank(device: torch.device) -> tuple[Tensor, Tensor]:
    """Return a Hann window (WINDOW,), and triangular filters with a peak of 1, (K, M).

    The edges of the bands are evenly spaced in mel, 2595 log10(1 + f / 700), as in HTK (Young et
    al.). Band m begins at edge m, has its peak at edge m + 1 and ends at edge m + 2. The energies
    of a power spectrum (..., K) in the bands are ``spectrum @ bank``.
    """
    frequencies = torch.arange(WINDOW // 2 + 1, dtype=torch.float64)[:, None] * RATE / WINDOW
    top = 2595 * torch.log10(1 + torch.tensor(RATE / 2, dtype=torch.float64) / 700)
    mels = torch.linspace(0, 1, NUM_BANDS + 2, dtype=torch.float64) * top
    edges = 700 * (10 ** (mels / 2595) - 1)
    low, peak, high = edges[:-2], edges[1:-1], edges[2:]
    rising, falling = (frequencies - low) / (peak - low), (high - frequencies) / (high - peak)
    bank = torch.minimum(rising, falling).clamp(min=0).float()
    return torch.hann_window(WINDOW).to(device), bank.to(device)


def frames(sounds: Tensor) -> Tensor:
    """Return frames, each centred on its own HOP samples: (B, T) -> (B, T / HOP, WINDOW)."""
    missing = (WINDOW - HOP) // 2
    return F.pad(sounds, (missing, missing)).unfold(-1, WINDOW, HOP)


def unit_rms(sounds: Tensor) -> Tensor:
    """Return sounds scaled to a root mean square of 1: (B, T) -> (B, T). Silence stays silent."""
    return sounds / sounds.square().mean(-1, keepdim=True).sqrt().clamp(min=1e-6)


def log_mel(sounds: Tensor) -> Tensor:
    """Return log-mel spectrograms of Hann windows: (B, T) -> (B, M, F), band 0 the lowest."""
    window, bank = _window_and_bank(sounds.device)
    spectrum = torch.fft.rfft(frames(sounds) * window)
    power = spectrum.real.square() + spectrum.imag.square()
    return (power @ bank + FLOOR).log().mT


def spectrograms(sounds: Tensor) -> Tensor:
    """Return log-mel spectrograms as images of mean 0 and deviation 1: (B, T) -> (B, 1, M, F).

    Deviation: Gong et al. 2021 (https://arxiv.org/abs/2104.01778) normalise with the statistics of
    the data set. Here each spectrogram has its own, so the loudness of a recording has no effect
    and no statistics must be stored. Silence becomes zeros.
    """
    found = log_mel(sounds)
    centred = found - found.mean((1, 2), keepdim=True)
    return (centred / centred.square().mean((1, 2), keepdim=True).sqrt().clamp(min=1e-3))[:, None]
