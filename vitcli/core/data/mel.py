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


def hz_to_mel(frequency: Tensor) -> Tensor:
    """Return the mel of a frequency in Hz, 2595 log10(1 + f / 700), as in HTK (Young et al.)."""
    return 2595 * torch.log10(1 + frequency / 700)


def mel_to_hz(mel: Tensor) -> Tensor:
    """Return the frequency in Hz of a mel; the inverse of ``hz_to_mel``."""
    return 700 * (10 ** (mel / 2595) - 1)


def band_edges(num_bands: int = NUM_BANDS, rate: int = RATE) -> Tensor:
    """Return the edges of the bands in Hz, (M + 2,) float64, evenly spaced in mel from 0 Hz up.

    Band m begins at edge m, has its peak at edge m + 1 and ends at edge m + 2.
    """
    top = hz_to_mel(torch.tensor(rate / 2, dtype=torch.float64))
    return mel_to_hz(torch.linspace(0, 1, num_bands + 2, dtype=torch.float64) * top)


def mel_bank(num_bands: int = NUM_BANDS, window: int = WINDOW, rate: int = RATE) -> Tensor:
    """Return triangular filters with a peak of 1: (K, M) float32, K = window / 2 + 1.

    The energies of a power spectrum (..., K) in the bands are ``spectrum @ bank``.
    """
    frequencies = torch.arange(window // 2 + 1, dtype=torch.float64)[:, None] * rate / window
    edges = band_edges(num_bands, rate)
    low, peak, high = edges[:-2], edges[1:-1], edges[2:]
    rising, falling = (frequencies - low) / (peak - low), (high - frequencies) / (high - peak)
    return torch.minimum(rising, falling).clamp(min=0).float()


@cache
def _constants(device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the Hann window (WINDOW,) and the mel bank (K, M) on a device."""
    return torch.hann_window(WINDOW).to(device), mel_bank().to(device)


def frames(sounds: Tensor) -> Tensor:
    """Return overlapping frames: (B, T) -> (B, T / HOP, WINDOW).

    Zeros are added at both ends, so that each frame is centred on its own HOP samples.
    """
    missing = (WINDOW - HOP) // 2
    return F.pad(sounds, (missing, missing)).unfold(-1, WINDOW, HOP)


def power_spectrum(sounds: Tensor) -> Tensor:
    """Return |FFT|^2 of the Hann-windowed frames: (B, T) -> (B, F, K)."""
    window, _ = _constants(sounds.device)
    spectrum = torch.fft.rfft(frames(sounds) * window)
    return spectrum.real.square() + spectrum.imag.square()


def unit_rms(sounds: Tensor) -> Tensor:
    """Return sounds scaled to a root mean square of 1: (B, T) -> (B, T). Silence stays silent."""
    return sounds / sounds.square().mean(-1, keepdim=True).sqrt().clamp(min=1e-6)


def log_mel(sounds: Tensor) -> Tensor:
    """Return log-mel spectrograms: (B, T) -> (B, M, F), band 0 the lowest."""
    _, bank = _constants(sounds.device)
    return (power_spectrum(sounds) @ bank + FLOOR).log().mT


def spectrograms(sounds: Tensor) -> Tensor:
    """Return log-mel spectrograms as images of mean 0 and deviation 1: (B, T) -> (B, 1, M, F).

    Deviation: Gong et al. 2021 (https://arxiv.org/abs/2104.01778) normalise with the statistics of
    the data set. Here each spectrogram has its own, so the loudness of a recording has no effect
    and no statistics must be stored. Silence becomes zeros.
    """
    found = log_mel(sounds)
    centred = found - found.mean((1, 2), keepdim=True)
    return (centred / centred.square().mean((1, 2), keepdim=True).sqrt().clamp(min=1e-3))[:, None]
