"""Captions (``captions.csv``) and sounds (``NAME.wav`` beside ``NAME.png``) as ``Images.extra``.

Axes: N pictures, L bytes, T samples.
"""

import io
import math
import os
import wave
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitcli.core.data.mel import NUM_SAMPLES, RATE
from vitcli.runner.data.pictures import picture_bytes
from vitcli.runner.errors import InputError
from vitcli.runner.report.tables import csv_lines
from vitcli.runner.text import listed, printable

CAPTIONS = "captions.csv"
COLUMNS = ["file", "caption"]
LONGEST = 4096
"""Most bytes that the captions of one picture may take together."""
SOUND = ".wav"
RATES = (1000, 192_000)
"""Lowest and highest accepted sampling rate in Hz."""


@dataclass(frozen=True, kw_only=True)
class ExtraReader:
    """A kind of files beside the pictures of a folder."""

    is_own: Callable[[str], bool]
    """Whether a file of this name, in lower case, is of this kind, and so is not a picture."""
    read: Callable[[Path, Sequence[str], Sequence[str]], Tensor]
    """Takes the root of the folder, for messages, and the paths of files of this kind and of the
    pictures. Returns a tensor whose row i belongs to picture i. Raises InputError if a picture has
    no row."""
    random: Callable[[int, torch.Generator], Tensor]
    """Makes a tensor for a number of random pictures, to measure the time of a step."""


def _refuse(root: Path, bad: Sequence[str], total: int, what: str, hint: str) -> None:
    if bad:
        count = f"{len(bad):,} of {total:,} pictures"
        raise InputError(f"{printable(root)}: {count} {what}:\n{listed(bad)}\n{hint}")


# Captions


def read_captions(root: Path, files: Sequence[str], pictures: Sequence[str]) -> Tensor:
    """Return the captions of pictures: (N, L) uint8, UTF-8 bytes padded with 0.

    ``files`` are CSV files with the columns ``file`` and ``caption``; a file name is relative to
    the folder of the CSV file. The captions of a picture with several lines are separated by a
    newline, in the order of the file. Spaces and line breaks inside a caption become one space.
    """
    captions: dict[str, list[str]] = {os.path.normpath(path): [] for path in pictures}
    for path in map(Path, sorted(files)):
        for at, name, text in csv_lines(path, COLUMNS):
            picture, caption = os.path.normpath(path.parent / name), " ".join(text.split())
            if not caption:
                raise InputError(f"{at}: the caption is empty")
            if picture in captions:
                captions[picture].append(caption)
            elif not os.path.exists(picture):
                raise InputError(f"{at}: there is no picture {printable(name)}")
    without = sorted(path for path, texts in captions.items() if not texts)
    names = [printable(os.path.relpath(path, root)) for path in without]
    hint = f"Add a line for each to {CAPTIONS}, or remove {CAPTIONS}"
    _refuse(root, names, len(pictures), "have no caption", hint)
    rows = {path: "\n".join(texts).encode() for path, texts in captions.items()}
    longest = max(rows, key=lambda path: len(rows[path]))
    length = len(rows[longest])
    if length > LONGEST:
        raise InputError(
            f"{printable(root)}: the captions of {printable(os.path.relpath(longest, root))} have"
            f" {length:,} bytes, at most {LONGEST:,} are allowed"
        )
    whole = b"".join(row.ljust(length, b"\0") for row in rows.values())
    return torch.frombuffer(bytearray(whole), dtype=torch.uint8).view(len(rows), length)


# Sounds


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
    _refuse(root, without, len(pictures), "have no sound", hint)
    sounds = torch.zeros(len(pictures), NUM_SAMPLES, dtype=torch.int16)
    failures = []
    for row, path in zip(sounds, own, strict=True):
        try:
            samples = torch.from_numpy(read_sound(path))
            row[: len(samples)] = samples
        except InputError as error:
            failures.append(name(error))
    hint = f"Repair them, or remove all {SOUND} files"
    _refuse(root, failures, len(pictures), "have a sound that cannot be read", hint)
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


EXTRAS = {
    "caption": ExtraReader(
        is_own=lambda name: name == CAPTIONS,
        read=read_captions,
        random=lambda count, generator: torch.randint(  # 32 small letters
            97, 123, (count, 32), dtype=torch.uint8, generator=generator
        ),
    ),
    "sound": ExtraReader(
        is_own=lambda name: name.endswith(SOUND),
        read=read_sounds,
        random=lambda count, generator: torch.randint(  # noise
            -9999, 9999, (count, NUM_SAMPLES), dtype=torch.int16, generator=generator
        ),
    ),
}


def kind_of(name: str) -> str | None:
    """Return the name of the row of ``EXTRAS`` that a file belongs to; None for a picture."""
    return next((kind for kind, row in EXTRAS.items() if row.is_own(name.lower())), None)


def read_extras(
    root: Path, files: Sequence[str], pictures: Sequence[str]
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the extra tensors of the pictures, in their order, and why a kind has no tensor.

    No files of a kind give no tensor. Files that are damaged, or do not cover all pictures, give
    the reason.
    """
    tensors: dict[str, Tensor] = {}
    reasons: dict[str, str] = {}
    for kind, row in EXTRAS.items():
        if chosen := [path for path in files if kind_of(os.path.basename(path)) == kind]:
            try:
                tensors[kind] = row.read(root, chosen, pictures)
            except InputError as error:
                reasons[kind] = str(error)
    return tensors, reasons
