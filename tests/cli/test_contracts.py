"""What all commands have in common: JSON, folders that cannot be written to, names of any kind."""

import errno
import os
import shlex
import shutil
import tempfile
from pathlib import Path
from typing import get_args

import pytest

from tests.cli.commands import save_picture, vitcli
from tests.fabricated import make_run
from tests.plugin_rows import of
from vitcli.cli.attn_map import FileFormat

ADVICE = "choose another place with -o"
WRITING = {
    "train": ("train tiny.yaml", "runs"),
    "ablate": ("ablate --only no-ffn --seeds 0", "runs"),
    "attn-map": ("attn-map x.png -o maps/x.png", "maps"),
    "explain": ("explain scale -o made/scale.html", "made"),
    "export": ("export cifar10-pocket -o made/weights.safetensors", "made"),
    "page": ("runs page mine -o made/index.html", "made"),
    "bench": ("bench attention --lengths 8,16 -o made/growth.png", "made"),
    "trace": ("bench train --trace -o made/trace.json", "made"),
}


@pytest.fixture
def place(tiny, here) -> None:
    save_picture("x.png", (32, 32))
    make_run(0)
    Path("runs").rename("mine")


def refused(command: str) -> tuple[int, str]:
    code, _, talk = vitcli(*shlex.split(command))
    (error,) = [line for line in talk.splitlines() if line.startswith("error:")]
    return code, error


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    "command",
    [
        *("train", "ablate", "attn-map"),
        *of("explain", "explain"),
        *of("exports", "export"),
        *of("page", "page"),
        *of("bench", "bench", "trace"),
    ],
)
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


BRIEF = "--rounds 1 --seconds 0"
KEPT = {
    **{f"map.{kind}": f"attn-map x.png -o map.{kind}" for kind in get_args(FileFormat)},
    "page": "explain patches -o page.html",
    "export": "export cifar10-pocket -o export.safetensors",
    "card": "export cifar10-pocket --format card -o README.md",
    "growth": f"bench attention --lengths 8,16 --embed-dim 8 {BRIEF} -o growth.png",
    "trace": f"bench train -s model.depth=1 -s train.batch_size=8 {BRIEF} --trace -o trace.json",
    "sheet": "data info imagefolder:pictures -o sheet.png",
}


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    "command",
    [
        *("map.png", "map.svg", "map.pdf", "map.npz", "map.json", "sheet"),
        *of("live", "map.html"),
        *of("explain", "page"),
        *of("exports", "export", "card"),
        *of("bench", "growth", "trace"),
    ],
)
def test_a_command_replaces_only_a_file_of_its_own(command):
    words = shlex.split(KEPT[command])
    file = Path(words[-1])
    mine = save_picture("y.png", (8, 8))
    shutil.copy(mine, file)
    assert vitcli(*words)[0] == 2
    assert file.read_bytes() == Path(mine).read_bytes()
    file.unlink()
    for _ in range(2):
        assert vitcli(*words)[0] == 0


NAMING = (
    *("eval", "runs show", "runs rm -y", "runs watch", "train --resume", "train", "ablate"),
    *("visualize", "experiments show", "data info", "export --format safetensors", "train -o"),
)


@pytest.mark.parametrize("name", ["x" * 300, "no\x1b[31mcaf\udce9"], ids=ascii)
@pytest.mark.parametrize("words", NAMING)
def test_a_name_of_any_kind_is_refused_in_plain_lines(here, words, name):
    if words == "train -o":
        name = f"caf\udce9/{name}"
    code, out, talk = vitcli(*words.split(), name)
    assert (code in (2, 4), out, talk.count("error: ")) == (True, "", 1)
    assert ("\x1b" in talk, len(talk) < 1000) == (False, True)
