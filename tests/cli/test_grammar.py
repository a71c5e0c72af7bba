"""docs/grammar.md: every command follows its rules, and old spellings still work."""

import sys
from pathlib import Path

import pytest

from tests.cli.commands import save_picture, vitcli
from tests.fabricated import make_run
from vitcli.cli.chosen import run_and_pictures
from vitcli.cli.old_spellings import OLD_SPELLINGS, spelled_today
from vitcli.runner.errors import ConfigError


@pytest.fixture
def place(here) -> None:
    """Pictures, a run, a folder of pictures, and one that is also the name of a run."""
    for folder in ("photos", "runs/both", "both"):
        Path(folder).mkdir(parents=True)
    Path("vit.pt").touch()
    save_picture("x.png", (8, 8))
    make_run(0, folder=Path("elsewhere"))
    make_run(0, folder=Path("runs/pets"))


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    ("words", "run"),
    [
        *(("x.png", None), ("photos", None), ("-", None), ("both", None), ("absent", None)),
        *(("x.png photos", None), ("photos x.png", None), ("absent.jpg x.png", None)),
        *(("- x.png", None), ("~/y.png x.png", None), ("./both x.png", None)),
        *(("pets x.png", "pets"), ("runs/pets x.png", "runs/pets"), ("pets -", "pets")),
        *(("elsewhere x.png", "elsewhere"), ("cifar10-pocket photos", "cifar10-pocket")),
        *(("runs/both x.png", "runs/both"), ("vit.pt x.png", "vit.pt"), ("pest x.png", "pest")),
        *(("timm:vit x.png", "timm:vit"), ("other.pt x.png", "other.pt")),
    ],
)
def test_a_run_and_pictures_are_told_apart(words, run):
    typed = words.split()
    assert run_and_pictures("predict", typed) == (run, typed[1:] if run else typed)


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("", "vitcli predict photo.jpg"),
        ("pets", "vitcli predict pets photo.jpg"),
        ("elsewhere", "vitcli predict elsewhere photo.jpg"),
        ("both x.png", "type runs/both for the run, or ./both"),
    ],
)
def test_what_can_be_misread_is_refused(words, told):
    with pytest.raises(ConfigError, match=told):
        run_and_pictures("predict", words.split())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("predict a b --top 3 --run pets", "predict pets a b --top 3"),
        ("predict --run=pets a", "predict pets a"),
        ("attn-map a --model vit.pt -o m", "attn-map vit.pt a -o m"),
        ("explain scale --image a --run pets --json", "explain scale --json pets a"),
        ("-q runs list --json", "-q runs ls --json"),
        ("runs compare a b", "runs diff a b"),
        ("import vit.pt -e tiny --name a", "import vit.pt --name a tiny"),
        ("export a --to=card", "export a --format=card"),
        ("ablate mine --only first --seeds 0", "ablate mine --first --seeds 0"),
        ("bench train a --profile -o t", "bench train a --trace -o t"),
    ],
)
def test_an_old_spelling_is_a_new_one(old, new):
    words, notes = spelled_today(old.split())
    assert " ".join(words) == new
    assert all("is now" in note for note in notes)
    assert len(notes) >= 1


@pytest.mark.parametrize(
    "line",
    [
        "predict a -- --run",
        "runs show list",
        "eval --run a",
        "predict a --runs b",
        "ablate --only=first",
        "list runs",
        "",
    ],
)
def test_other_words_stay(line):
    assert spelled_today(line.split()) == (line.split(), [])


def test_a_note_is_printed_once_and_runs_store_the_new_command(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["vitcli", "runs", "list"])
    _, _, talk = vitcli("runs", "list")
    assert talk.count("note: 'vitcli runs list' is now 'vitcli runs ls'\n") == 1
    assert sys.argv[1:] == ["runs", "ls"]


def test_every_old_spelling_is_gone_from_the_help():
    for path, old, _ in OLD_SPELLINGS:
        name, *more = old.split()
        _, out, _ = vitcli(*path.split(), "--help")
        assert f" {name} " not in out or more[:1] == ["first"], path
