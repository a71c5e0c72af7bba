"""Sounds: generated for the images of a data set with labels, or ``NAME.wav`` by ``NAME.png``.

A class is a melody: glides between pitches that are relative to the first one. A speaker shifts
pitch and formant, so the pitch alone does not tell the class. Training and evaluation have
different speakers. A sound is a function of its key and its class. The key is one of the image's
content, on the device: it needs no table of the data set, and does not depend on the order of the
images, on the split or on the machine, because only integer operations are used.

Below are the log-mel spectrograms that models see of these and of stored sounds.

Axes: B batch, C channels, H W pixels, T samples, n glides of a melody, h harmonics, F frames, K
frequencies of the Fourier transform, M mel bands.
"""

import io
import math
import os
import wave
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from vitcli.core.randomness import keyed_generator, seed_of
from vitcli.runner.data.extras import ExtraReader, refuse_pictures
from vitcli.runner.data.pictures import picture_bytes
from vitcli.runner.errors import InputError
from vitcli.runner.text import printable

GOLDEN = -0x61C8864680B583EB
MULTIPLIERS = (-0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15)
"""Constants of SplitMix64 as signed integers."""
BANK = 1 << 20
"""Number of values in the bank of noise; a power of 2."""


def scramble(keys: Tensor) -> Tensor:
    """Return unrelated keys, int64 -> int64: a permutation of all 64-bit integers.

    The last step of SplitMix64. Steele et al. 2014, https://doi.org/10.1145/2714064.2660195
    """
    for shift, factor in zip((30, 27), MULTIPLIERS, strict=True):
        keys = (keys ^ _shift(keys, shift)) * factor
    return keys ^ _shift(keys, 31)


def _shift(keys: Tensor, count: int) -> Tensor:
    return (keys >> count) & ((1 << (64 - count)) - 1)


@cache
def _weights(length: int, device: torch.device) -> Tensor:
    generator = keyed_generator("content", length)
    drawn = torch.randint(-(2**63), 2**63 - 1, (length,), generator=generator)
    return (drawn | 1).to(device)


def content_keys(pixels: Tensor) -> Tensor:
    """Return a key of each image's content: (B, C, H, W) uint8 -> (B,) int64."""
    flat = pixels.flatten(1)
    return scramble((flat.long() * _weights(flat.shape[1], flat.device)).sum(1))


def keys_for(keys: Tensor, *purpose: int | str) -> Tensor:
    """Return keys for a purpose, such as ``("noise", seed, epoch)``: (B,) -> (B,)."""
    return scramble(keys ^ seed_of(*purpose))


def uniform(keys: Tensor, count: int) -> Tensor:
    """Return numbers in [0, 1) for each key: (B,) int64 -> (B, count) float32."""
    steps = torch.arange(1, count + 1, device=keys.device) * GOLDEN
    return _shift(scramble(keys[:, None] + steps), 40).float() / (1 << 24)


@cache
def _bank(device: torch.device) -> Tensor:
    return torch.randn(BANK, generator=keyed_generator("noise bank")).to(device)


def noise(keys: Tensor, length: int) -> Tensor:
    """Return white noise of deviation 1: (B,) int64 -> (B, length) float32.

    It is a piece of a bank of 2^20 values that begins at a random place. Drawing new values for
    every image would take longer than a training step of a small model.
    """
    places = keys[:, None] + torch.arange(length, device=keys.device)
    return _bank(keys.device)[places & (BANK - 1)]


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


CPU = torch.device("cpu")
LEVELS = (-0.75, -0.25, 0.25, 0.75)
"""Pitches of a melody in octaves, relative to its first pitch."""
SPEAKERS, HELD_OUT = 40, 10
"""Number of speakers in training, and number of other speakers in evaluations."""
PITCH = 400.0
"""Middle of the speakers' first pitches in Hz; they lie within half an octave of it."""
FORMANTS = (800.0, 2400.0)
"""Range of the speakers' formants in Hz."""
FORMANT_WIDTH = 0.7
"""Width of a formant in octaves."""
NUM_HARMONICS = 3
FADE = 0.1
"""Share of a sound in which it fades in, and in which it fades out."""


@cache
def melodies(num_classes: int, device: torch.device = CPU) -> Tensor:
    """Return the pitches of each class in octaves: (num_classes, n + 1), the first pitch is 0.

    The digits of a class are its levels. An odd factor permutes the classes, because neighbours,
    which may look alike, would otherwise sound alike.
    """
    base, glides = len(LEVELS), 2
    while base**glides < num_classes:
        glides += 1
    code = (torch.arange(num_classes) * 7 + 3) % base**glides
    digits = torch.stack([code // base**i % base for i in range(glides)], dim=1)
    levels = torch.tensor(LEVELS)[digits]
    return torch.cat([torch.zeros(num_classes, 1), levels], dim=1).to(device)


@cache
def speakers(device: torch.device = CPU) -> Tensor:
    """Return the first pitch and the formant of each speaker in Hz; held-out speakers are last."""
    drawn = torch.rand(SPEAKERS + HELD_OUT, 2, generator=keyed_generator("speakers"))
    low, high = FORMANTS
    pitch = PITCH * 2 ** (drawn[:, 0] - 0.5)
    return torch.stack([pitch, low * (high / low) ** drawn[:, 1]], dim=1).to(device)


def choose_speakers(shares: Tensor, held_out: bool) -> Tensor:
    """Return the indices of speakers for numbers in [0, 1): (B,) -> (B,) int64."""
    first, count = (SPEAKERS, HELD_OUT) if held_out else (0, SPEAKERS)
    return first + (shares * count).long()


def synthesize(keys: Tensor, classes: Tensor, num_classes: int, *, held_out: bool) -> Tensor:
    """Return sounds of RMS 1, of held-out or other speakers: (B,), (B,) -> (B, T) float32."""
    speaker, tune, stretch, start, phase = uniform(keys, 5).unbind(1)
    who = speakers(keys.device)[choose_speakers(speaker, held_out)]
    first = who[:, 0] * 2 ** ((tune - 0.5) / 4)  # up to an eighth of an octave off
    length = 0.5 + 0.45 * stretch  # share of the T samples that sound
    time = torch.arange(NUM_SAMPLES, device=keys.device) / NUM_SAMPLES
    place = (time - (start * (1 - length))[:, None]) / length[:, None]  # 0 .. 1 while it sounds
    pitches = first[:, None] * 2 ** melodies(num_classes, keys.device)[classes]
    seconds = length * (NUM_SAMPLES / RATE)
    angle = 2 * math.pi * (cycles(place, pitches, seconds) + phase[:, None])
    harmonics = torch.arange(1, NUM_HARMONICS + 1, device=keys.device)
    octaves = (first[:, None] * harmonics / who[:, 1:]).log2()
    loudness = torch.exp(-0.5 * (octaves / FORMANT_WIDTH).square())  # (B, h)
    waves = sum(loudness[:, h : h + 1] * (angle * (h + 1)).sin() for h in range(NUM_HARMONICS))
    fade_in, fade_out = (place / FADE).clamp(0, 1), ((1 - place) / FADE).clamp(0, 1)
    return unit_rms(waves * (fade_in * fade_out))


def cycles(place: Tensor, pitches: Tensor, seconds: Tensor) -> Tensor:
    """Return the number of cycles until a place: (B, T), (B, n + 1), (B,) -> (B, T).

    The frequency is linear between the pitches, which are evenly spaced from place 0 to place 1. So
    the number of cycles is a sum of parabolas. This closed form needs no cumulative sum, which
    CUDA does not repeat bit by bit.
    """
    glides = pitches.shape[1] - 1
    total = torch.zeros_like(place)
    for i in range(glides):
        inside = (place * glides - i).clamp(0, 1)
        begin, rise = pitches[:, i, None], (pitches[:, i + 1] - pitches[:, i])[:, None]
        total = total + inside * (begin + rise * inside / 2)
    return total * (seconds / glides)[:, None]


SOUND = ".wav"
RATES = (1000, 192_000)
"""Lowest and highest accepted sampling rate in Hz."""


def read_sounds(root: Path, files: Sequence[str], pictures: Sequence[str]) -> Tensor:
    """Return the sounds of pictures: (N, T) int16 at ``RATE`` samples per second.

    A longer sound is cut at its end, a shorter one is followed by zeros. Those without a picture
    are not read.
    """

    def name(line: object) -> str:
        return printable(str(line).removeprefix(f"{root}{os.sep}"))

    by_stem = {os.path.splitext(path)[0]: path for path in files}
    own = [by_stem.get(os.path.splitext(path)[0], "") for path in pictures]
    without = [name(path) for path, sound in zip(pictures, own, strict=True) if not sound]
    hint = f"Add NAME.wav beside each NAME.png, or remove all {SOUND} files"
    refuse_pictures(root, without, len(pictures), "have no sound", hint)
    sounds = torch.zeros(len(pictures), NUM_SAMPLES, dtype=torch.int16)
    failures = []
    for row, path in zip(sounds, own, strict=True):
        try:
            samples = torch.from_numpy(read_sound(path))
            row[: len(samples)] = samples
        except InputError as error:
            failures.append(name(error))
    hint = f"Repair them, or remove all {SOUND} files"
    refuse_pictures(root, failures, len(pictures), "have a sound that cannot be read", hint)
    return sounds


def read_sound(path: str) -> NDArray[np.int16]:
    """Return the first ``NUM_SAMPLES`` samples of a WAV file at ``RATE``, or fewer: (T,)."""
    where = printable(path)
    try:
        with wave.open(io.BytesIO(picture_bytes(path))) as file:
            channels, width, rate, length, *_ = file.getparams()
            if width not in (1, 2):
                raise InputError(f"{where}: has {8 * width} bits a sample; save it with 16 bits")
            if channels not in (1, 2):
                raise InputError(f"{where}: has {channels} channels; save it with 1 or 2")
            if not RATES[0] <= rate <= RATES[1]:
                raise InputError(f"{where}: has {rate:,} samples per second; save it with {RATE:,}")
            wanted = min(length, math.ceil(NUM_SAMPLES * rate / RATE))
            content = file.readframes(wanted)
    except (wave.Error, EOFError) as error:
        reason = error or "too short"
        raise InputError(f"{where}: not a WAV file of samples (PCM): {reason}") from error
    if not wanted or len(content) != wanted * width * channels:
        raise InputError(f"{where}: {'is cut off' if wanted else 'holds no samples'}")
    if width == 1:
        samples = (np.frombuffer(content, np.uint8).astype(np.float64) - 128) * 256
    else:
        samples = np.frombuffer(content, "<i2").astype(np.float64)
    samples = samples.reshape(-1, channels).mean(1)
    if rate != RATE:
        # Imported here because the import takes 0.5 s, and most folders have no sounds.
        from scipy.signal import resample_poly

        common = math.gcd(rate, RATE)
        samples = resample_poly(samples, RATE // common, rate // common)
    limits = np.iinfo(np.int16)
    return samples[:NUM_SAMPLES].round().clip(limits.min, limits.max).astype(np.int16)


SOUNDS = ExtraReader(
    is_own=lambda name: name.endswith(SOUND),
    read=read_sounds,
    random=lambda count, generator: torch.randint(  # noise
        -9999, 9999, (count, NUM_SAMPLES), dtype=torch.int16, generator=generator
    ),
)
