"""`vitcli runs` on fabricated folders."""

from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import document, printed, said, vitcli
from tests.fabricated import make_run
from tests.plugin_rows import has
from tests.terminal import run_in_terminal
from vitcli.core.metric import Metric
from vitcli.runner.files import commit_json
from vitcli.runner.run.record import metric_facts, read_record

pytestmark = pytest.mark.usefixtures("here")


@pytest.mark.parametrize(
    ("file", "content"),
    [
        *(("config.yaml", "seed: 0\n"), ("config.yaml", None), ("meta.json", "[]")),
        *(("metrics.jsonl", ""), ("status.json", "{"), ("result.json", "")),
    ],
)
def test_a_damaged_run_is_listed_and_removed_but_not_used(file, content):
    """YAML that was cut off is often valid; the settings after the cut are then defaults."""
    run, other = make_run(0, changes={"model.depth": 2}), make_run(1)
    digest = {"config_sha256": run.config_sha256()}
    commit_json(run.path / "meta.json", read_record(run).meta | digest)
    (run.path / file).unlink() if content is None else (run.path / file).write_text(content)
    states = {row["name"]: row["state"] for row in document("runs", "ls")["runs"]}
    assert states == {run.name: "damaged", other.name: "finished"}
    assert document("runs", "show", run.name)["state"] == "damaged"
    commands: list[tuple[str, ...]] = [("runs", "verify"), ("eval",)]
    for command in [*commands, *[("export",)] * has("exports")]:
        is_named = file == "config.yaml" and command[0] != "runs"
        assert file in said(4, *command, run.name) or not is_named
    assert vitcli("train", "--resume", run.name)[0] == 4
    said(0, "runs", "rm", "-y", run.name)
    assert (run.exists, other.exists) == (False, True)


@pytest.mark.parametrize("json_option", [(), ("--json",)])
def test_control_characters_in_names_are_shown_escaped(json_option):
    make_run(0, folder=Path("runs/evil\x1b[31m\nname"))
    for words in (("ls",), ("show", "evil\x1b[31m\nname"), ("rm", "-y", "evil\x1b[31m\nname")):
        code, out, talk = vitcli("runs", *words, *json_option)
        assert (code, "\x1b" in out + talk) == (0, False)
        assert "evil\\x1b[31m" in out or "evil\\u001b[31m\\nname" in out


def test_diff_shows_what_was_set_and_what_was_measured():
    make_run(0, folder=Path("runs/a"), accuracy=0.5)
    changes = {"model.depth": 2, "data.augment.mixup": 0.5}
    make_run(1, folder=Path("runs/b"), accuracy=0.625, changes=changes, meta={"commit": "e" * 40})
    config, environment, measured = pairs("a", "b")
    assert config.keys() == {*changes, "seed"}
    assert (config["model.depth"], config["seed"]) == ([4, 2], [0, 1])
    assert environment == {"commit": ["c" * 40, "e" * 40]}
    assert measured["test_accuracy"] == [0.5, 0.625, 0.125]
    make_run(0, folder=Path("runs/c"), state="interrupted")
    stated = {"metrics": {"hits": metric_facts(Metric(name="hits", label="hits"))}}
    make_run(0, folder=Path("runs/d"), meta=stated, result={"test_hits": 0.25})
    make_run(0, folder=Path("runs/e"), meta=stated, result={"test_hits": 0.5})
    assert pairs("d", "e")[2]["test_hits"] == [0.25, 0.5, 0.25], "a metric of own code"
    *_, measured = pairs("a", "c")
    assert (measured["epochs"], measured["parameters"]) == ([8, 3, -5], [140618, None, None])


def pairs(*names: str) -> list[dict[str, Any]]:
    found = document("runs", "diff", *names)
    return [
        {row.pop("name"): [*row.values()] for row in found[part]}
        for part in ("config", "environment", "measured")
    ]


def test_rm_leaves_a_run_with_a_folder_in_place_of_a_file():
    run = make_run(0)
    (run.path / "result.json").rename(run.path / "old.json")
    (run.path / "result.json").mkdir()
    (run.path / "result.json/mine").touch()
    said(4, "runs", "rm", run.name, "--yes")
    assert (run.path / "result.json/mine").exists()
    assert (run.path / "config.yaml").exists()


@pytest.mark.parametrize(("answer", "code", "kept"), [(b"y\n", 0, False), (b"\4", 130, True)])
def test_rm_asks_on_a_terminal(answer, code, kept, environment):
    run = make_run(0)
    words = ("runs", "rm", "quickstart")
    found, screen = run_in_terminal(*words, environment=environment, width=80, typed=answer)
    assert (found, run.exists, f"remove {run.name} (" in screen) == (code, kept, True)


def test_rm_of_a_run_in_use_is_refused_and_removes_nothing():
    idle, busy = make_run(0), make_run(1)
    words = ["runs", "rm", "-y", idle.name, busy.name]
    with busy.lock():
        assert said(7, *words).startswith(f"error: {busy.path}: ")
    assert (idle.exists, busy.exists) == (True, True)
    printed(*words)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        *(("config.yaml", "lr: 0.1\nmodel: resnet\n"), ("config.yaml", "seed: 3\n")),
        ("plan.json", "{}"),
    ],
)
def test_rm_leaves_folders_of_other_programs_alone(file, content):
    for mine in (Path("project/checkpoints/best.pt"), Path("project/figures/mine.png")):
        mine.parent.mkdir(parents=True)
        mine.touch()
    Path("project", file).write_text(content)
    said(4, "runs", "rm", "-y", "project")
    assert len([*Path("project").rglob("*.*")]) == 3
