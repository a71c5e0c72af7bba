"""What all commands have in common: JSON, folders that cannot be written to, names of any kind."""

import csv
import errno
import json
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import document, printed, save_picture, vitcli
from tests.fabricated import make_run

ADVICE = "choose another place with -o"
WRITING = {
    "train": ("train tiny.yaml", "runs"),
    "ablate": ("ablate --only no-ffn --seeds 0", "runs"),
    "attn-map": ("attn-map x.png -o maps/x.png", "maps"),
    "explain": ("explain scale -o made/scale.txt", "made"),
    "export": ("export cifar10-pocket -o made/weights.safetensors", "made"),
    "page": ("runs page mine -o made/index.html", "made"),
    "bench": ("bench attention -o made/growth.png", "made"),
    "trace": ("bench data --trace -o made/trace.json", "made"),
}
READING = (
    *("experiments validate tiny.yaml", "experiments schema", "ablate mine.yaml --status"),
    *("ablate mine.yaml --table-only", "ablate mine.yaml --dry-run -s model.depth=1"),
)
"""Commands whose document no other test reads."""


@pytest.mark.parametrize("command", READING)
def test_json_is_one_document(stage, command):
    code, out, _ = vitcli(*shlex.split(command), "--json")
    assert code == (3 if "--table-only" in command else 0), "no trial of the study has a result"
    assert isinstance(json.loads(out), dict | list)


SCORES = ("mapped", "mapped --probe knn", "mapped --probe linear", "captions --zero-shot")
FORMATTED = [
    *product([f"eval {words}" for words in SCORES], ["text", "md", "csv"]),
    *product(["predict mapped x.png y.png --top 2"], ["text", "csv"]),
]


def numbers(value: Any) -> Iterator[float]:
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from numbers(each)
    elif isinstance(value, int | float):
        yield float(value)


@pytest.mark.parametrize(("command", "form"), FORMATTED)
def test_every_format_has_the_numbers_of_json(stage, command, form):
    words = command.split()
    known = {*numbers(document(*words))}
    shown = printed(*words, "--format", form)
    if form == "csv":
        cells = {cell for row in csv.reader(shown.splitlines()) for cell in row}
        found = {float(cell) for cell in cells if re.fullmatch(r"\d+\.\d+", cell)}
        assert len(found) > 0
        assert found <= known | {round(number, 6) for number in known}
    else:
        shares = {*re.findall(r"(\d+\.\d+) %", shown)}
        assert len(shares) > 0
        assert shares <= {f"{100 * x:.{digits}f}" for x in known for digits in (1, 2)}


@pytest.fixture
def place(tiny, here) -> None:
    """Enter a folder with a picture and an experiment; no data set is read."""
    save_picture("x.png", (32, 32))
    make_run(0)
    Path("runs").rename("mine")


def refused(command: str) -> tuple[int, str]:
    code, _, talk = vitcli(*shlex.split(command))
    (error,) = [line for line in talk.splitlines() if line.startswith("error:")]
    return code, error


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("command", WRITING)
def test_a_folder_that_cannot_be_written_to_suggests_another(command, monkeypatch):
    def refuse(*_, dir: Path, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(dir))

    words, folder = WRITING[command]
    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "TemporaryFile", refuse)
        code, error = refused(words)
    assert (code, error.endswith(ADVICE)) == (5, True), error
    shutil.rmtree(folder, ignore_errors=True)
    Path(folder).touch()
    code, error = refused(words)
    assert (code, error.endswith(ADVICE)) == (2, True), error


NAMING = (
    *("eval", "runs show", "runs rm -y", "runs watch", "train --resume", "train", "ablate"),
    *("visualize", "experiments show", "data info", "export --format safetensors", "train -o"),
)


@pytest.mark.parametrize("name", ["x" * 300, "no\x1b[31mwhere", "caf\udce9"], ids=ascii)
@pytest.mark.parametrize("words", NAMING)
def test_a_name_of_any_kind_is_refused_in_plain_lines(here, words, name):
    if words == "train -o":
        name = f"caf\udce9/{name}"
    code, out, talk = vitcli(*words.split(), name)
    assert (code in (2, 4), out, talk.count("error: ")) == (True, "", 1)
    assert ("\x1b" in talk, len(talk) < 1000) == (False, True)
