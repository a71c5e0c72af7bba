"""Captions and sounds of one's own pictures: read, refused in one line, and trained with."""

import csv
import math
import struct
import wave
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.runner.data.conftest import in_order
from tests.runner.train.conftest import train
from vitcli.core.data.mel import NUM_SAMPLES, RATE
from vitcli.core.data.source import Images, evenly_spaced
from vitcli.core.spec import DataSpec
from vitcli.runner.data import picture_reader
from vitcli.runner.data.arrays import data_hash
from vitcli.runner.data.extras import read_sound, read_sounds
from vitcli.runner.data.load import load_data
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.evaluate.weights import load_module

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture
def root(tmp_path):
    """Two classes of six pictures, each of one colour; the caption names the red value."""
    folder = tmp_path / "pets"
    for file, caption in PAIRS:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (int(caption.removeprefix("red ")), 0, 0)).save(folder / file)
    write(folder / "captions.csv", PAIRS)
    return folder


PAIRS = [
    (f"{name}/{i}.png", f"red {40 * i + label}")
    for label, name in enumerate(("cat", "dog"))
    for i in range(6)
]
"""Picture and its caption."""


def write(path: Path, rows, head=("file", "caption")) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([head, *rows])


def load(root, **options):
    return load_data(DataSpec(name=f"imagefolder:{root}", **options), extras=["caption"])


def texts(images: Images) -> list[str]:
    return [bytes(row.tolist()).rstrip(b"\0").decode() for row in images.extra["caption"]]


def fits(images: Images) -> bool:
    red = images.pixels[:, 0, 0, 0].tolist()
    return [f"red {value}" for value in red] == [text.split("\n")[0] for text in texts(images)]


def test_captions_follow_their_pictures(root):
    data = load(root, val_split=2, resize=4)
    assert all(map(fits, (data.train, data.val, data.test)))
    assert len(data.train) + len(data.val) + len(data.test) == 12
    assert fits(evenly_spaced(data.train, 3))
    assert fits(data.to("cpu").train)
    assert not fits(replace(data.train, pixels=data.train.pixels.flip(0))), "the control"


def test_captions_come_from_the_cache_and_a_change_is_noticed(root, monkeypatch):
    first = load(root)
    with monkeypatch.context() as patch:
        patch.setattr(picture_reader, "read_labelled", None)
        assert texts(load(root).train) == texts(first.train)
    write(root / "captions.csv", [(file, f"{caption} new") for file, caption in PAIRS])
    again = load(root)
    assert all(text.endswith(" new") for text in texts(again.train))
    assert again.data_hash != first.data_hash
    (root / "captions.csv").unlink()
    plain = load(root)
    assert plain.train.extra == {}
    assert len({plain.data_hash, first.data_hash, again.data_hash}) == 3


def test_the_hash_of_images_without_captions_is_that_of_earlier_versions():
    images = Images(torch.arange(48, dtype=torch.uint8).view(4, 3, 2, 2), torch.arange(4))
    wanted = "637a7c23709865a856999caa116e3ea29f8c0b919b6326714474ef1eb8480769"
    assert data_hash([images]) == wanted
    described = [replace(images, extra={"caption": torch.full((4, 1), each)}) for each in (97, 98)]
    assert len({data_hash([each]) for each in (images, *described)}) == 3


def test_equal_pictures_are_sorted_by_their_captions():
    pixels, labels = torch.zeros(2, 1, 1, 1, dtype=torch.uint8), torch.zeros(2, dtype=torch.long)
    captions = torch.tensor([[98], [97]], dtype=torch.uint8)
    both = (Images(pixels, labels, {"caption": each}) for each in (captions, captions.flip(0)))
    one, other = (texts(in_order(images)) for images in both)
    assert one == other


def test_several_captions_of_a_picture_and_files_in_the_class_folders(root):
    (root / "captions.csv").unlink()
    for name in ("cat", "dog"):
        rows = [(file.removeprefix(f"{name}/"), text) for file, text in PAIRS if name in file]
        more = [(file, 'a "quoted",\n two-line  text é') for file, _ in rows]
        write(root / name / "Captions.csv", rows + more)
    data = load(root)
    assert fits(data.train)
    assert {text.split("\n")[1] for text in texts(data.train)} == {'a "quoted", two-line text é'}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("file,caption\ncat/9.png,a cat\n", "line 2: there is no picture cat/9.png"),
        ("file,caption\ncat/0.png, \n", "line 2: the caption is empty"),
        ("file,caption\n,a cat\n", "line 2: the file is empty"),
        ("file,caption\ncat/0.png,caf\udce9\n", "UTF-8"),
        ("file,caption\ncat/0.png,a cat\n", "11 of 12 pictures have no caption:\n  cat/1.png"),
    ],
)
def test_a_file_that_is_no_list_of_captions_is_refused(root, content, message):
    (root / "captions.csv").write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(InputError) as error:
        load(root)
    assert message in str(error.value)


CAPTIONS = {"task.name": "clip", "task.captions": "folder", "data.augment.mixup": 0.0}


def test_captions_are_retrieved_and_the_vocabulary_is_kept(tiny, pictures):
    with pytest.raises(ConfigError, match=r"task.captions"):
        train(tiny, "run", CAPTIONS)
    assert not Path("run").exists()
    words = {"dark": "a gloomy night", "bright": "a sunny day"}
    paths = sorted(pictures.glob("*/*/*.png"))
    rows = [(path.relative_to(pictures), words[path.parent.name]) for path in paths]
    write(pictures / "captions.csv", rows)
    changes = {"optim.lr": 0.01, "train.epochs": 12, "train.ema_decay": None}
    changes |= {"train.precision": "fp32", "model.drop_path": 0.0, "task.vocabulary_size": 8}
    done = train(tiny, "run", CAPTIONS | changes)
    text = load_module(done.folder, done.spec).text
    assert text.words() == ["a", "day", "gloomy", "night"], "the most frequent, then the first"
    assert done.result["test_image_to_text_r1"] > 0.85
    assert done.result["test_text_to_image_r1"] > 0.85
    assert done.result["test_zero_shot_accuracy"] < 0.9, "no caption has the names of the classes"


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
    (pictures / "captions.csv").write_text("image;text")
    for _ in range(2):  # the second time from the cache
        messages = [""]
        data = load_data(DataSpec(name=plain.name), on_message=messages.append)
        assert (data.data_hash, data.train.extra) == (plain.data_hash, {})
        for kind in ("sounds", "captions"):
            assert sum(f"{kind} are not used" in text for text in messages) == 1
    train(tiny, "classify")
    with pytest.raises(InputError, match="pictures have no sound"):
        train(tiny, "fusion", FUSION)


def test_a_training_hears_the_sounds_of_its_folder(tiny, pictures):
    with pytest.raises(ConfigError, match=r"task\.sound: .* has no sounds; add NAME\.wav"):
        train(tiny, "silent", FUSION)
    add_sounds(pictures)
    done = train(tiny, "run", FUSION)
    assert done.result["test_accuracy"] > 0.9
