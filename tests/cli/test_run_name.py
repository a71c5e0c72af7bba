"""`--name`: a run gets a folder of its name under runs/."""

import json
from pathlib import Path

import pytest
import safetensors.torch
from typer.testing import CliRunner

from vitcli.cli.main import app
from vitcli.runner.evaluate.weights import load_model

COMMANDS = [["train", "--dry-run"], ["import", "x.pt", "-e", "quickstart"]]


def vitcli(*words: object) -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


def test_a_named_run_is_found_by_its_name(tiny, pictures):
    code, out, _ = vitcli("train", tiny, "--name", "my pets", "--epochs", 1)
    assert code == 0
    assert "run            runs/my pets\nnext           vitcli eval 'my pets'\n" in out
    picture = pictures / "test" / "dark" / "0.png"
    assert vitcli("predict", picture, "--run", "my pets")[0] == 0
    code, _, talk = vitcli("train", tiny, "--name", "my pets", "--epochs", 2)
    assert code == 2
    assert "choose another --name or -o, or replace it with --rerun" in talk
    assert vitcli("train", tiny, "--name", "my pets", "--epochs", 1, "--resume", "auto")[0] == 0


def test_imported_weights_get_a_name(copy_of_run, tiny):
    source = copy_of_run(Path("source"), {"train.epochs": 1})
    safetensors.torch.save_file(load_model(str(source)).state_dict(), "weights.safetensors")
    code, out, talk = vitcli("import", "weights.safetensors", "-e", tiny, "--name", "theirs")
    assert code == 0, talk
    assert out == "run            runs/theirs\nnext           vitcli eval theirs\n"
    assert json.loads(Path("runs/theirs/meta.json").read_text())["imported"]
    code, _, talk = vitcli("import", "weights.safetensors", "-e", tiny)
    assert (code, talk) == (2, "error: an imported run needs a name: --name NAME, or -o FOLDER\n")


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "--name is empty"),
        (" ", "--name is empty"),
        ("a/b", "plain name such as pets, got 'a/b'; -o takes the path"),
        ("a\\b", "plain name"),
        ("..", "plain name"),
        (".hidden", "plain name"),
        ("a\nb", "plain name"),
        ("auto", "mistaken for '--resume auto'"),
        ("quickstart", "mistaken for the runs of the experiment quickstart"),
    ],
)
def test_what_is_no_plain_name_is_refused(here, command, name, problem):
    code, out, talk = vitcli(*command, "--name", name)
    assert (code, out) == (2, "")
    assert talk.startswith("error: ")
    assert problem in talk
    assert len(talk.splitlines()) == 1
    assert not Path("runs").exists()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_name_and_a_folder_are_refused(here, command):
    code, _, talk = vitcli(*command, "--name", "pets", "-o", "runs/pets")
    assert code == 2
    assert talk == "error: --name and -o both name the run folder; leave out one of them\n"


def test_a_resumed_run_keeps_its_name(here):
    code, _, talk = vitcli("train", "--resume", "quickstart", "--name", "pets")
    assert code == 2
    assert "leave out the experiment, --set, --name, -o and --rerun" in talk
