"""Sounds of one's own pictures: read, refused in one line, and trained with."""

import math
import struct
import wave
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.runner.train.conftest import train
from vitcli.core.spec import DataSpec
from vitcli.plugins.fusion.sounds import NUM_SAMPLES, RATE, read_sound, read_sounds
from vitcli.runner.data.load import load_data
from vitcli.runner.errors import ConfigError, InputError

pytestmark = pytest.mark.usefixtures("here")


def write_sound(path: Path, samples: np.ndarray, rate: int = RATE, width: int = 2) -> Path:
    samples = samples[:, None] if samples.ndim == 1 else samples
    with wave.open(str(path), "wb") as file:
        file.setnchannels(samples.shape[1])
        file.setsampwidth(width)
        file.setframerate(rate)
        if width == 1:
            file.writeframes((samples * 127 + 128).round().astype(np.uint8).tobytes())
        else:
            file.writeframes((samples * 32767).round().astype("<i2").tobytes())
    return path


def tone(hertz: float, seconds: float, rate: int = RATE) -> np.ndarray:
    return 0.5 * np.sin(2 * math.pi * hertz * np.arange(round(seconds * rate)) / rate)


@pytest.mark.parametrize(
    ("rate", "width"), [(16_000, 1), (44_100, 1), (8000, 2), (16_000, 2), (22_050, 2), (5512, 2)]
)
def test_every_rate_and_width_gives_the_same_sound(tmp_path, rate, width):
    found = read_sound(str(write_sound(tmp_path / "a.wav", tone(440, 0.4, rate), rate, width)))
    assert abs(len(found) - 0.4 * RATE) <= 2
    wanted = 32767 * tone(440, 0.4)[100 : len(found) - 100]
    assert np.corrcoef(found[100 : 100 + len(wanted)], wanted)[0, 1] > 0.999
    assert abs(np.abs(found[500:-500]).max() / (0.5 * 32767) - 1) < 0.03


def test_channels_are_averaged_long_sounds_cut_and_short_ones_padded(tmp_path):
    left = tone(300, 1.0)
    both, none = np.stack([left, left], 1), np.stack([left, -left], 1)
    for name, samples in (("a", none), ("b", left[:100]), ("c", left), ("d", both)):
        write_sound(tmp_path / f"{name}.wav", samples)
    names = [str(tmp_path / f"{name}.png") for name in "abcd"]
    found = read_sounds(tmp_path, [str(path) for path in tmp_path.glob("*.wav")], names)
    assert (found.shape, found.dtype) == ((4, NUM_SAMPLES), torch.int16)
    assert found[0].abs().max() <= 1
    assert found[1, 100:].abs().max() == 0
    assert found[1, :100].equal(found[2, :100])
    assert found[3].equal(found[2])


def header(**fields: int) -> bytes:
    claims = {"format": 1, "channels": 1, "rate": RATE, "bits": 16, "bytes": 200} | fields
    kind, channels, rate, bits, size = claims.values()
    numbers = struct.pack("<IHHIIHH", 16, kind, channels, rate, 0, channels * bits // 8, bits)
    length, whole = struct.pack("<I", size), struct.pack("<I", 36 + size)
    return b"RIFF" + whole + b"WAVEfmt " + numbers + b"data" + length + bytes(200)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (header(format=3, bits=32), "not a WAV file of samples"),
        (header(bits=24), "has 24 bits a sample; save it with 16 bits"),
        (header(channels=6), "has 6 channels; save it with 1 or 2"),
        (header(rate=1), "has 1 samples per second; save it with 8,000"),
        (header(bytes=2_000_000_000), "is cut off"),
        (header(bytes=0), "holds no samples"),
        *((text, "not a WAV file of samples") for text in (b"", b"RIFF", b"not a sound")),
    ],
)
def test_what_is_no_wav_file_or_a_hostile_one_is_refused_in_one_line(tmp_path, content, message):
    (tmp_path / "a.wav").write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        read_sound(str(tmp_path / "a.wav"))
    assert str(caught.value).startswith(f"{tmp_path / 'a.wav'}: ")


def add_sounds(pictures: Path) -> None:
    for i, path in enumerate(sorted(pictures.glob("*/*/*.png"))):
        hertz = 300 if path.parent.name == "dark" else 1500
        write_sound(path.with_suffix(".WAV" if i % 2 else ".wav"), tone(hertz + i, 0.4))


def test_a_folder_with_sounds_is_read_and_the_sounds_follow_the_pictures(pictures):
    alone = load_data(DataSpec(name=f"imagefolder:{pictures}"))
    add_sounds(pictures)
    for data in (load_data(DataSpec(name=f"imagefolder:{pictures}")) for _ in range(2)):
        assert data.train.pixels.equal(alone.train.pixels), "sounds do not change the order"
        power = torch.fft.rfft(data.train.extra["sound"].float()).abs()
        hertz = power.argmax(1) * RATE / NUM_SAMPLES
        assert torch.equal(hertz < 900, data.train.labels == data.class_names.index("dark"))
        assert len(data.test.extra["sound"]) == len(data.test)


FUSION = {"task.name": "fusion", "task.sound": "folder", "task.sound_patch_size": 16}


def test_sounds_that_no_task_reads_do_not_block_a_training(tiny, pictures):
    plain = load_data(DataSpec(name=f"imagefolder:{pictures}"))
    (pictures / "train/dark/memo.wav").write_bytes(b"")
    for _ in range(2):  # the second time from the cache
        messages = [""]
        data = load_data(DataSpec(name=plain.name), on_message=messages.append)
        assert (data.data_hash, data.train.extra) == (plain.data_hash, {})
        assert sum("sounds are not used" in text for text in messages) == 1
    train(tiny, "classify", {"train.epochs": 0})
    with pytest.raises(InputError, match="pictures have no sound"):
        train(tiny, "fusion", FUSION)


def test_a_training_hears_the_sounds_of_its_folder(tiny, pictures):
    with pytest.raises(ConfigError, match=r"task\.sound: .* has no sounds; add NAME\.wav"):
        train(tiny, "silent", FUSION)
    add_sounds(pictures)
    done = train(tiny, "run", FUSION)
    assert done.result["test_accuracy"] > 0.9
