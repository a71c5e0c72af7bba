"""The classifier object: pictures of any source, many threads, and what is accepted."""

import io
import re
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitcli
from tests.patience import HANG
from vitcli.runner.data.pictures import quiet_pillow
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.evaluate.classifier import AHEAD, Classifier

GREY = np.arange(64, dtype=np.uint8).reshape(8, 8)


def made(**options: Any) -> Classifier:
    """Return a classifier whose logits are 0 and the mean level of a picture, divided by 10."""

    def prepare(picture: bytes | Image.Image, name: str) -> np.ndarray:
        if picture == b"bad":
            raise InputError(f"{name}: bad")
        image = Image.open(io.BytesIO(picture)) if isinstance(picture, bytes) else picture
        return np.asarray(image)

    def logits(inputs: Any) -> np.ndarray:
        means = np.array([picture.mean() / 10 for picture in inputs])
        return np.stack([0 * means, means], axis=1).astype(np.float32)

    facts: dict[str, Any] = {"model": "made", "source": "made", "about": "made", "weights": "1"}
    facts |= {"names": ("dark", "bright"), "prepare": prepare, "logits": logits, "batch_size": 4}
    return Classifier(**facts | options)


def level(value: int) -> np.ndarray:
    return np.full((2, 2), value, np.uint8)


@pytest.fixture(scope="module")
def bundled() -> Classifier:
    return vitcli.load_classifier("cifar10-pocket", device="cpu")


def file_bytes(image: Image.Image, **options: Any) -> bytes:
    with io.BytesIO() as file:
        image.save(file, "PNG", **options)
        return file.getvalue()


SOURCES = {
    "grey": GREY,
    "one channel": GREY[..., None],
    "colour": np.stack([GREY, GREY.T, 255 - GREY], axis=2),
    "transparent": np.stack([GREY, GREY.T, GREY, 4 * GREY], axis=2),
    "a view": np.stack([GREY, GREY.T, GREY], axis=2)[::-1, ::2],
}


@pytest.mark.parametrize("name", SOURCES)
def test_a_picture_has_one_answer_from_every_source(bundled, here, name):
    pixels = SOURCES[name]
    image = Image.fromarray(np.ascontiguousarray(pixels.squeeze()))
    image.save("x.png")
    content = Path("x.png").read_bytes()
    sources = ["x.png", Path("x.png"), content, image, pixels, bytearray(content)]
    sources += [memoryview(content)]
    one = bundled("x.png")
    assert [*one.probabilities.values()] == sorted(one.probabilities.values(), reverse=True)
    assert sum(one.probabilities.values()) == pytest.approx(1)
    with Path("x.png").open("rb") as file, Path("x.png").open("rb") as again:
        alone = [*map(bundled, [*sources, file, io.BytesIO(content)])]
        together = bundled(iter([*sources, again, io.BytesIO(content)]))
    assert [answer.file for answer in together] == ["x.png", "x.png", *[None] * 7]
    for answer in (*together, *alone):
        assert answer.probabilities == pytest.approx(one.probabilities, abs=1e-6)
    if pixels.ndim == 3:
        assert len(bundled(np.stack([pixels, pixels]))) == 2, "four axes are several pictures"


def test_an_image_of_pillow_is_turned_like_its_file_and_stays_as_it_is(bundled):
    exif = Image.Exif()
    exif[0x0112] = 6
    pixels = np.repeat(np.stack([GREY, GREY.T, 255 - GREY], axis=2), 2, axis=1)
    content = file_bytes(Image.fromarray(pixels), exif=exif)
    image = Image.open(io.BytesIO(content))
    shares = [bundled(source).probabilities for source in (content, image, pixels)]
    assert shares[0] == pytest.approx(shares[1], abs=1e-6)
    assert shares[0] != pytest.approx(shares[2], abs=1e-3)
    assert image.size == (16, 8)


@pytest.mark.parametrize("name", ["large.jpg", "phone.mpo", "white.tif"])
def test_an_image_that_pillow_has_not_decoded_has_the_answer_of_its_file(bundled, here, name):
    """A large JPEG is decoded at a fraction of its size; in the TIFF file 0 is white."""
    grey, is_tiff = np.kron(GREY, np.ones((37, 29))).astype("u2"), name == "white.tif"
    image = Image.fromarray(grey * 257 if is_tiff else grey.astype("u1"))
    options = {"large.jpg": {}, "white.tif": {"tiffinfo": {262: 0}}}
    image.save(name, **options.get(name, {"save_all": True, "append_images": [image]}))
    file = bundled(name).probabilities
    with Image.open(name) as lazy:
        assert bundled(lazy).probabilities == pytest.approx(file, abs=1e-6)
        assert bundled(lazy.rotate(90)).probabilities != pytest.approx(file, abs=1e-3)
        assert lazy.size == image.size


def closed() -> Image.Image:
    file = io.BytesIO(file_bytes(Image.fromarray(GREY)))
    with file:
        return Image.open(file)


ARRAYS = [GREY.astype(np.float32), GREY[..., None].repeat(2, 2), GREY[0], GREY[:0]]
BAD: list[tuple[Any, str]] = [
    ("missing.png", "cannot be opened"),
    (b"words", "not a picture"),
    (closed(), "the picture is damaged"),
    (b"\x89PNG", "the picture is damaged"),
    (3, "int is no path, bytes"),
    ({"x.png"}, "set is no path, bytes"),
    (io.StringIO("words"), "the file gives no bytes; open it with 'rb'"),
    (torch.zeros(8, 8, dtype=torch.uint8), r"Tensor is no path.*; type \.numpy\(\) behind"),
    (Image.new("L", (210, 10)), "210x10 has an aspect ratio"),
    (Image.new("F", (8, 8)), "its pixels are floating-point numbers, from 0 to 0; train with"),
    (Image.new("I", (8, 8), -1), "its pixels are more than 16 bits, from -1 to -1; train with"),
    *((array, "an array") for array in ARRAYS),
]


@pytest.mark.parametrize(("bad", "text"), BAD, ids=[text for _, text in BAD])
def test_a_bad_picture_alone_raises_and_is_one_answer_among_others(bundled, bad, text):
    names = (bad, bad) if isinstance(bad, str) else ("picture", "picture 1")
    with pytest.raises(vitcli.UserError, match=f"^{names[0]}: {text}"):
        bundled(bad)
    first, second = bundled([bad, GREY])
    assert re.match(f"{names[1]}: {text}", str(first.error))
    assert (first.class_name, first.probability, first.to_dict()["probabilities"]) == (
        None,
    ) * 2 + ({},)
    assert (second.error, second.probabilities) == (None, bundled(GREY).probabilities)


@pytest.mark.parametrize(("temperature", "accepted"), [(1.0, True), (2.0, False)])
def test_an_answer_is_accepted_by_its_probability(temperature, accepted):
    answer = made(reject=0.73, temperature=temperature)(level(10))  # 1 / (1 + exp(-1)) is 0.731
    assert answer.accepted is accepted


def test_an_infinite_logit_is_an_error_of_its_picture():
    classifier = made(logits=lambda inputs: np.array([[0, np.inf], [0, 1]], np.float32))
    first, second = classifier([level(1), level(2)])
    assert (first.error, second.class_name) == ("picture 1: an output is infinite or NaN", "bright")


@pytest.mark.parametrize(
    "change",
    [
        *({"weights": "2"}, {"names": ("bright", "dark")}, {"temperature": 2.0}),
        *({"reject": 0.5}, {"threshold": 0.5}, {"options": "x"}),
    ],
)
def test_the_name_changes_with_all_that_decides_an_answer(change):
    assert made().name == made(batch_size=8).name != made(**change).name


def test_pictures_are_read_by_all_threads_and_computed_by_one_at_a_time():
    everyone, busy = threading.Barrier(16), threading.Lock()
    plain = made()

    def prepare(picture: Any, name: str) -> Any:
        everyone.wait(HANG)  # passes only if 16 pictures are prepared at once
        return plain.prepare(picture, name)

    def logits(inputs: Any) -> np.ndarray:
        assert busy.acquire(blocking=False), "two threads compute"
        rows = plain.logits(inputs)
        time.sleep(0.02)  # a chance for other threads to come in
        busy.release()
        return rows

    shared = replace(plain, prepare=prepare, logits=logits)
    pictures = [level(value) for value in range(0, 160, 10)]
    with ThreadPoolExecutor(16) as pool:
        answers = [*pool.map(shared, pictures)]
    assert answers == plain(pictures)
    assert len({answer.probability for answer in answers}) == 16


def test_many_pictures_are_answered_in_order_and_a_few_are_read_ahead():
    taken = 0

    def pictures() -> Any:
        nonlocal taken
        for taken in range(1, 203):
            yield level(taken % 256) if taken % 50 else b"bad"

    classifier, answers = made(), []
    for answer in classifier.stream(pictures()):
        answers.append(answer)
        assert taken <= len(answers) + (AHEAD + 1) * classifier.batch_size
    assert [n for n, answer in enumerate(answers, 1) if answer.error] == [50, 100, 150, 200]
    assert answers[49].error == "picture 50: bad"
    for number in (1, 49, 51, 202):
        assert answers[number - 1].probability == pytest.approx(made()(level(number)).probability)
    assert classifier([]) == []


@pytest.mark.parametrize("kind", ["array", "buffer", "file", "image"])
def test_an_iterator_may_give_one_object_again_with_another_content(monkeypatch, kind):
    """As a camera does, and the frames of a GIF in Pillow."""
    monkeypatch.setattr("vitcli.runner.evaluate.classifier.allowed_cores", lambda: [0])
    levels, plain, all_taken = (10, 20, 30), made(), threading.Event()

    def frames() -> Any:
        array, image, buffer, file = level(0), Image.new("L", (2, 2)), bytearray(), io.BytesIO()
        for value in levels:
            content = file_bytes(Image.fromarray(level(value)))
            array[:] = value
            image.paste(value, (0, 0, 2, 2))
            buffer[:] = content
            file.seek(0)
            file.write(content)
            file.seek(0)
            yield {"array": array, "buffer": buffer, "file": file, "image": image}[kind]
        all_taken.set()

    def prepare(picture: Any, name: str) -> Any:
        assert all_taken.wait(HANG)
        return plain.prepare(picture, name)

    answers = made(prepare=prepare)(frames())
    assert answers == plain([level(value) for value in levels])


def test_warnings_of_pillow_are_silent_until_the_last_thread_is_done():
    before = [*warnings.filters]
    with ThreadPoolExecutor(1) as other:
        with quiet_pillow():
            context = quiet_pillow()
            other.submit(context.__enter__).result(HANG)
        assert warnings.filters != before, "the other thread still reads"
        other.submit(context.__exit__, None, None, None).result(HANG)
    assert warnings.filters == before


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"source": "none"}, "no run is called 'none'"),
        ({"source": None}, "NoneType names no run"),
        ({"source": 5}, "int names no run"),
        ({"reject": 1.5}, "reject=1.5"),
        ({"reject": 0.5, "coverage": 0.9}, "exclude each other"),
        ({"coverage": 0.9}, "it has no thresholds"),
        ({"device": "abacus"}, "abacus"),
    ],
)
def test_what_cannot_be_loaded_is_one_line(here, options, text):
    with pytest.raises(vitcli.UserError) as caught:
        vitcli.load_classifier(options.pop("source", "cifar10-pocket"), **options)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_names_that_need_no_torch_import_none(environment):
    code = (
        "import sys, vitcli\n"
        "names = vitcli.load_classifier, vitcli.Classifier, vitcli.Prediction, vitcli.UserError\n"
        "try:\n    vitcli.load_classifier('x', fit='zoom')\n"
        "except vitcli.UserError as error:\n    print(error)\n"
        "assert 'torch' not in sys.modules"
    )
    command = [sys.executable, "-c", code]
    assert b"zoom" in subprocess.check_output(command, env=environment, timeout=HANG)
    assert issubclass(ConfigError, vitcli.UserError)
