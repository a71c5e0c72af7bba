"""The sounds of a folder of pictures: ``NAME.wav`` beside ``NAME.png``.

Axes: N pictures, T samples.
"""

import io
import math
import os
import wave
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitcli.core.data.mel import NUM_SAMPLES, RATE
from vitcli.runner.data.pictures import picture_bytes
from vitcli.runner.errors import InputError
from vitcli.runner.text import listed, printable

SUFFIX = ".wav"
RATES = (1000, 192_000)
"""Lowest and highest accepted sampling rate in Hz."""


def is_sound(name: str) -> bool:
    """Return whether a file of this name is a sound."""
    return name.lower().endswith(SUFFIX)


def read_sounds(root: Path, files: Sequence[str], pictures: Sequence[str]) -> Tensor:
    """Return the sounds of pictures: (N, T) int16 at ``RATE`` samples per second.

    A longer sound is cut at its end, a shorter one is followed by zeros.

    Args:
        root: The folder of the pictures, for messages.
        files: Paths of WAV files. Those without a picture are not read.
        pictures: Paths of the pictures.

    Raises:
        InputError: A picture has no sound, or a sound cannot be read. The text lists all of them.
    """
    by_stem = {os.path.splitext(path)[0]: path for path in files}
    stems = [os.path.splitext(path)[0] for path in pictures]
    missing = [path for path, stem in zip(pictures, stems, strict=True) if stem not in by_stem]
    _refuse(root, missing, len(pictures), "have no sound", "Add NAME.wav beside each NAME.png")
    sounds = torch.zeros(len(pictures), NUM_SAMPLES, dtype=torch.int16)
    failures = []
    for row, stem in zip(sounds, stems, strict=True):
        try:
            found = torch.from_numpy(read_sound(by_stem[stem]))
            row[: len(found)] = found
        except InputError as error:
            failures.append(str(error))
    _refuse(root, failures, len(pictures), "have a sound that cannot be read", "Repair them")
    return sounds


def _refuse(root: Path, bad: Sequence[str], total: int, what: str, hint: str) -> None:
    if bad:
        names = [printable(line.removeprefix(f"{root}{os.sep}")) for line in bad]
        raise InputError(
            f"{printable(root)}: {len(bad):,} of {total:,} pictures {what}:\n{listed(names)}\n"
            f"{hint}, or remove all {SUFFIX} files"
        )


def read_sound(path: str) -> NDArray[np.int16]:
    """Return the first ``NUM_SAMPLES`` samples of a WAV file at ``RATE``, or fewer: (T,).

    Raises:
        InputError: The file is not a PCM file of 8 or 16 bits with one or two channels, or is
            damaged.
    """
    where = printable(path)
    try:
        with wave.open(io.BytesIO(picture_bytes(path))) as file:
            _refuse_format(where, file)
            wanted = min(file.getnframes(), math.ceil(NUM_SAMPLES * file.getframerate() / RATE))
            content = file.readframes(wanted)
            width, channels, rate = file.getsampwidth(), file.getnchannels(), file.getframerate()
    except (wave.Error, EOFError) as error:
        raise InputError(
            f"{where}: not a WAV file of samples (PCM): {error or 'too short'}"
        ) from error
    if not wanted or len(content) != wanted * width * channels:
        raise InputError(f"{where}: {'is cut off' if wanted else 'holds no samples'}")
    if width == 1:
        samples = (np.frombuffer(content, np.uint8).astype(np.float64) - 128) * 256
    else:
        samples = np.frombuffer(content, "<i2").astype(np.float64)
    return resample(samples.reshape(-1, channels).mean(1), rate)


def _refuse_format(where: str, file: wave.Wave_read) -> None:
    width, channels, rate = file.getsampwidth(), file.getnchannels(), file.getframerate()
    if width not in (1, 2):
        raise InputError(f"{where}: has {8 * width} bits a sample; save it with 16 bits")
    if channels not in (1, 2):
        raise InputError(f"{where}: has {channels} channels; save it with 1 or 2")
    if not RATES[0] <= rate <= RATES[1]:
        raise InputError(f"{where}: has {rate:,} samples per second; save it with {RATE:,}")


def resample(samples: NDArray[np.float64], rate: int) -> NDArray[np.int16]:
    """Return samples at ``RATE`` per second, at most ``NUM_SAMPLES`` of them: (T,) -> (T',)."""
    if rate != RATE:
        # Imported here because the import takes 0.5 s, and most folders have no sounds.
        from scipy.signal import resample_poly

        common = math.gcd(rate, RATE)
        samples = resample_poly(samples, RATE // common, rate // common)
    limits = np.iinfo(np.int16)
    return samples[:NUM_SAMPLES].round().clip(limits.min, limits.max).astype(np.int16)
