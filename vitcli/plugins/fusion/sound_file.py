"""Sounds of one's own pictures: ``NAME.wav`` beside ``NAME.png``. Axes: N pictures, T samples."""

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

from vitcli.plugins.fusion.sounds import NUM_SAMPLES, RATE
from vitcli.runner.data.extras import ExtraReader, refuse_pictures
from vitcli.runner.data.pictures import picture_bytes
from vitcli.runner.errors import InputError
from vitcli.runner.text import printable

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
