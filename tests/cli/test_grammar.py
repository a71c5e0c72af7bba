"""docs/reference/grammar.md: every command follows its rules."""

import json
import re
from collections import defaultdict
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_type_hints

import pytest

from tests.cli.commands import commands_of, printed, root, said, save_picture, started, vitcli
from tests.fabricated import make_run
from vitcli.cli.chosen import run_and_pictures
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
        *(("- x.png", None), ("./both x.png", None)),
        *(("pets x.png", "pets"), ("runs/pets x.png", "runs/pets"), ("pets -", "pets")),
        *(("elsewhere x.png", "elsewhere"), ("cifar10-pocket photos", "cifar10-pocket")),
        *(("runs/both x.png", "runs/both"), ("vit.pt x.png", None), ("pest x.png", "pest")),
    ],
)
def test_a_run_and_pictures_are_told_apart(words, run):
    typed = words.split()
    assert run_and_pictures("predict", typed) == (run, typed[1:] if run else typed)


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    ("words", "told"),
    [("elsewhere", "predict elsewhere photo.jpg"), ("both x.png", "runs/both .*, or ./both")],
)
def test_what_can_be_misread_is_refused(words, told):
    with pytest.raises(ConfigError, match=told):
        run_and_pictures("predict", words.split())


COMMANDS = [(path, each) for path, each in commands_of(root()) if not hasattr(each, "commands")]
OPTIONS = [
    (path, command, each)
    for path, command in COMMANDS
    for each in command.params
    if each.param_type_name == "option"
]


def kind_of(parameter: Any, command: Any) -> Any:
    kind = get_type_hints(command.callback, include_extras=True)[parameter.name].__origin__
    return get_args(kind)[0] if isinstance(kind, UnionType) else kind


def test_every_command_follows_the_grammar():
    meanings: defaultdict[str, set[Any]] = defaultdict(set)
    with_json = set()
    for path, command, option in OPTIONS:
        kind = kind_of(option, command)
        assert not option.required, path
        if "--json" in option.opts:
            with_json.add(path)
        if "-o" in option.opts:
            assert {"FILE", "FOLDER"} & {*re.split(r"[|.]", option.metavar or "")}, path
        elif "--format" in option.opts:
            assert kind is not str, path
        # each command continues its own work; a run is compared with, or the best so far
        elif not {"--resume", "--against"} & {*option.opts}:
            for name in option.opts:
                meanings[name].add((str(kind), option.metavar, option.help))
    assert with_json == {path for path, _ in COMMANDS}
    assert {name: met for name, met in meanings.items() if len(met) > 1} == {}
    arguments = {
        f"--{word}"
        for _, command in COMMANDS
        for each in command.params
        if each.param_type_name == "argument"
        for word in str(each.metavar or each.name).lower().split("|")
    }
    assert arguments & meanings.keys() == set()


def test_the_whole_help_shows_every_option():
    """The snapshots have the short help, which leaves options out."""
    pages = {path: printed(*path.split()[1:], "--help-all") for path, _ in COMMANDS}
    for path, _, option in OPTIONS:
        assert max(option.opts, key=len) in pages[path], path


def test_quiet_leaves_results_and_errors(here, monkeypatch):
    monkeypatch.setenv("VITCLI_QUIET", "")  # restored after the test
    words = ("experiments", "cp", "quickstart", "--force")
    _, loud, talk = vitcli(*words)
    assert "vitcli train quickstart.yaml" in talk
    assert vitcli(*words, "--quiet") == (0, loud, "")
    assert said(4, "-q", "eval", "nobody").startswith("error: ")


def test_the_folder_of_runs_can_be_elsewhere(here, environment):
    make_run(0, folder=here / "elsewhere/pets")
    done = started("runs", "ls", "--json", env=environment | {"VITCLI_RUNS": "elsewhere"})
    assert [run["name"] for run in json.loads(done.stdout)["runs"]] == ["pets"]
