"""A folder that cannot be written to: one line with the folder, the reason and ``-o``."""

import errno
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.cli.map_pictures import save
from tests.fabricated import make_run
from vitcli.cli.main import app

ADVICE = "choose another place with -o"
WEIGHTS = "made/weights.safetensors"
COMMANDS = {
    "train": (["train", "tiny.yaml"], "runs"),
    "ablate": (["ablate", "--only", "no-ffn", "--seeds", "0"], "runs"),
    "visualize": (["visualize", "cifar10-pocket", "--what", "filters"], "figures"),
    "attn-map": (["attn-map", "x.png", "-o", "maps/x.png"], "maps"),
    "explain": (["explain", "scale", "-o", "made/scale.txt"], "made"),
    "export": (["export", "cifar10-pocket", "--to", "safetensors", "-o", WEIGHTS], "made"),
    "page": (["runs", "page", "mine", "-o", "made/index.html"], "made"),
    "bench": (["bench", "attention", "-o", "made/growth.png"], "made"),
    "trace": (["bench", "data", "--profile", "-o", "made/trace.json"], "made"),
}


@pytest.fixture(autouse=True)
def place(tiny, here, monkeypatch):
    """Enter a folder with a picture and an experiment; no data set is read."""
    monkeypatch.setattr("vitcli.runner.visualize.run_on_test_set.load_data", lambda *_, **__: DATA)
    save("x.png", (32, 32))
    make_run(0)
    Path("runs").rename("mine")


class Data:
    """As much of a data set as ``visualize --what filters`` reads."""

    img_size, in_chans, test, data_hash = (32, 32), 3, [0], ""


DATA = Data()


def error_of(words: list[str]) -> tuple[int, str]:
    """Return the exit code and the only error."""
    result = CliRunner().invoke(app, words)
    (error,) = [line for line in result.stderr.splitlines() if line.startswith("error:")]
    return result.exit_code, error


@pytest.mark.parametrize("command", COMMANDS)
def test_a_read_only_folder_suggests_another(command, monkeypatch):
    words, _ = COMMANDS[command]

    def refuse(*_, dir: Path, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(dir))

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    code, error = error_of(words)
    assert code == 5
    assert f" ({os.strerror(errno.EROFS)})" in error
    assert error.endswith(ADVICE)


@pytest.mark.parametrize("command", ["explain", "export", "page"])
def test_a_missing_folder_is_created(command):
    words, folder = COMMANDS[command]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert [path.name for path in Path(folder).iterdir()] == [Path(words[-1]).name]


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "visualize"])
def test_a_file_in_the_place_of_the_folder_suggests_another(command):
    words, folder = COMMANDS[command]
    Path(folder).touch()
    code, error = error_of(words)
    assert code == 2
    assert error.startswith(f"error: cannot write to {folder}")
    assert error.endswith(ADVICE)


@pytest.mark.parametrize("command", COMMANDS)
def test_permission_bits_suggest_another_folder(command):
    words, folder = COMMANDS[command]
    Path(folder).mkdir(0o555)
    if os.access(folder, os.W_OK):
        pytest.skip("this user may write into every folder")
    code, error = error_of(words)
    assert code == 5
    assert error.endswith(ADVICE)


def test_matplotlib_does_not_talk_about_its_cache(here, environment):
    home = {"HOME": os.devnull, "XDG_CONFIG_HOME": "", "XDG_CACHE_HOME": "", "MPLCONFIGDIR": ""}
    words = ["attn-map", "x.png", "--run", "cifar10-pocket", "-o", "map.png"]
    done = subprocess.run(
        [sys.executable, "-m", "vitcli", *words],
        env=environment | home,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == "bundled model cifar10-pocket (cifar10)\n"
