"""A package that is installed adds a part, a command and an option, as the rooms do."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from vitcli.version import PACKAGE

PROJECT = Path(__file__).with_name("package")
DOCS = Path(__file__).parents[2] / "docs"


def files_of(page: str) -> dict[str, str]:
    """Return the files that a page shows: each begins with a comment that is its name."""
    blocks = re.findall(
        r"^```\w+\n# (\S+\.\w+)\n(.*?)^```$", (DOCS / page).read_text(), re.M | re.S
    )
    return dict(blocks)


@pytest.fixture(scope="module")
def rings(tmp_path_factory) -> Path:
    return install(PROJECT, tmp_path_factory.mktemp("site"))


def install(project: Path, target: Path) -> Path:
    options = ["-q", "--no-index", "--no-deps", "--no-build-isolation", "--target", str(target)]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(project)], check=True)
    return target


def vitcli(*words: object, where: Path | None = None, code: int = 0, **variables: str) -> str:
    places = os.pathsep.join([str(PACKAGE.parent), *([str(where)] if where else [])])
    done = subprocess.run(
        [sys.executable, "-m", "vitcli", *map(str, words)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": places} | variables,
    )
    assert done.returncode == code, done.stderr
    return done.stdout if not code else done.stderr


def listed(where: Path, **variables: Any) -> dict:
    rows = json.loads(vitcli("plugins", "--json", where=where, **variables))["plugins"]
    return {row["name"]: row for row in rows}


def test_the_page_shows_the_package():
    shown = files_of("reference/plugins.md")
    assert len(shown) == 7
    assert shown == {name: (PROJECT / name).read_text() for name in shown}


def test_the_package_of_the_tutorial_works(tiny):
    for name, text in files_of("tutorials/own-part.md").items():
        folder = {"cosine.py": "vitcli_cosine"}.get(name, "")
        path = Path("project", folder, name)
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)
    site = install(Path("project").absolute(), Path("site").absolute())
    words = ("train", tiny, "-s", "model.attention=Cosine", "--stop-after", 1, "-o", "run")
    vitcli(*words, where=site)
    assert "vitcli-cosine: 0.1 " in Path("run/config.yaml").read_text()


def test_an_installed_plugin_adds_a_part_a_command_and_an_option(rings, tiny):
    row = listed(rings)["rings"]
    assert (row["state"], row["version"], row["package"]) == ("on", "0.3", "vitcli-rings")
    words = ("train", tiny, "-s", "model.attention=rings", "--stop-after", 1, "-o", "run")
    vitcli(*words, where=rings)
    assert "vitcli-rings: 0.3 " in Path("run/config.yaml").read_text()
    assert json.loads(vitcli("roundness", "run", "--json", where=rings))["roundness"] > 0
    vitcli("train", tiny, "-s", "task.name=confident", "--epochs", 1, "-o", "sure", where=rings)
    vitcli("visualize", "sure", "--what", "sizes", where=rings)
    assert Path("figures/sure/sizes.png").is_file()
    assert json.loads(vitcli("eval", "run", "--rings", "--json", where=rings))["rings"] == "test"
    assert "vitcli-rings" in vitcli("train", "--resume", "run", code=2)
    assert "rings" in vitcli("runs", "show", "run")
    off = {"VITCLI_PLUGINS": "no:rings"}
    assert listed(rings, **off)["rings"]["state"] == "switched off"
    assert "rings" not in vitcli("eval", "--help", where=rings, **off)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("from vitcli.plugin", "from vitcli.plugins_of_1999", "ModuleNotFoundError"),
        ("plugin = Plugin", "plugin = dict", "no Plugin"),
        ('"confident": ', '"mae": ', "task.name mae"),
        ('"roundness": "', '"explain": "', "the command explain"),
        ('"figure": ', '"figur": ', "no table 'figur'"),
        ('{"eval": ', '{"train": ', "'train' takes no options"),
    ],
)
def test_a_broken_plugin_is_one_line_and_the_rest_works(rings, tmp_path, here, old, new, reason):
    """Also one whose names are taken."""
    site = shutil.copytree(rings, tmp_path / "site", ignore=shutil.ignore_patterns("*.pyc"))
    path = site / "vitcli_rings" / "__init__.py"
    path.write_text(path.read_text().replace(old, new))
    assert reason in listed(site)["rings"]["state"]
    talk = vitcli("roundness", "run", where=site, code=2)
    assert talk.count("warning") == 1
    assert "the plugin rings is off" in talk


@pytest.mark.parametrize("module", ["command", "option", "attention"])
def test_an_error_in_what_is_used_is_one_line(rings, tmp_path, tiny, module):
    site = shutil.copytree(rings, tmp_path / "site", ignore=shutil.ignore_patterns("*.pyc"))
    path = site / "vitcli_rings" / f"{module}.py"
    path.write_text("1 / 0\n")
    place = f"{path}:1: ZeroDivisionError"
    if module == "command":
        assert "ZeroDivisionError" in vitcli("--help", where=site)
        assert place in vitcli("roundness", "run", where=site, code=2)
    elif module == "option":
        assert "--rings" not in vitcli("eval", "--help", where=site)
        path.write_text("def rings(run, common, *, probe: bool = False): ...\n")
        assert "neighbours" in vitcli("eval", "--help", where=site)
        path.unlink()
        assert "--probe" in vitcli("eval", "--help", where=site)
    else:
        words = ("train", tiny, "-s", "model.attention=rings", "--dry-run")
        assert place in vitcli(*words, where=site, code=2)
