"""A package that is installed adds a part, a command and an option, as the rooms do."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cli.commands import offered, printed, said
from vitcli import plugin
from vitcli.core.spec.slots import ATTENTIONS, AttentionRow
from vitcli.plugin import Registry
from vitcli.runner.experiment import own_code
from vitcli.version import PACKAGE

PROJECT = Path(__file__).with_name("package")
RINGS = {f"vitcli_rings/{p.name}": p.read_text() for p in PROJECT.glob("vitcli_rings/*.py")}
DOCS = Path(__file__).parents[2] / "docs"


def files_of(page: str) -> dict[str, str]:
    """Return the files that a page shows: each begins with a comment that is its name."""
    block = re.compile(r"^```\w+\n# (\S+\.\w+)\n(.*?)^```$", re.M | re.S)
    return dict(block.findall((DOCS / page).read_text()))


IN_TURN = """
import json, sys
from vitcli.cli.main import main

for words in json.loads(sys.argv[1]):
    sys.argv = ["vitcli", *words]
    try:
        main()
    except SystemExit as end:
        assert not end.code, words
    print("\\f")
"""


def vitcli(*commands: str, where: Path) -> list[str]:
    """Return what commands print that one new process runs in turn: torch is imported once."""
    variables = {"PYTHONPATH": os.pathsep.join([str(PACKAGE.parent), str(where)])}
    command = [sys.executable, "-c", IN_TURN, json.dumps([words.split() for words in commands])]
    return subprocess.check_output(command, text=True, env=os.environ | variables).split("\f")


def rings_in(text: str) -> dict[str, Any]:
    return next(row for row in json.loads(text)["plugins"] if row["name"] == "rings")


def test_the_page_shows_the_package():
    shown = files_of("reference/plugins.md")
    assert len(shown) == 7
    assert shown == {name: (PROJECT / name).read_text() for name in shown}


def test_installed_packages_add_parts_a_command_and_an_option(tiny):
    """The package of the page, and beside it that of the tutorial, which has a part alone."""
    for name, text in files_of("tutorials/own-part.md").items():
        folder = {"cosine.py": "vitcli_cosine"}.get(name, "")
        path = Path("project", folder, name)
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)
    options = ["-q", "--no-index", "--no-deps", "--no-build-isolation", "--target", "site"]
    projects = map(str, (PROJECT, Path("project").absolute()))
    subprocess.run([sys.executable, "-m", "pip", "install", *options, *projects], check=True)
    plugins, _, _, roundness, _, _, measured, _ = vitcli(
        "plugins --json",
        f"train {tiny} -s model.attention=Cosine --stop-after 1 -o cosine",
        f"train {tiny} -s model.attention=rings --stop-after 1 -o run",
        "roundness run --json",
        f"train {tiny} -s task.name=confident --epochs 1 -o sure",
        "visualize sure --what sizes",
        "eval run --rings --json",
        where=Path("site").absolute(),
    )
    assert "vitcli-cosine: 0.1 " in Path("cosine/config.yaml").read_text()
    row = rings_in(plugins)
    assert (row["state"], row["version"], row["package"]) == ("on", "0.3", "vitcli-rings")
    assert "vitcli-rings: 0.3 " in Path("run/config.yaml").read_text()
    assert json.loads(roundness)["roundness"] > 0
    assert Path("figures/sure/sizes.png").is_file()
    assert json.loads(measured)["rings"] == "test"
    assert "vitcli-rings" in said(2, "train", "--resume", "run")
    assert "rings" in printed("runs", "show", "run")


Install = Callable[[dict[str, str], dict[str, str]], None]


@pytest.fixture
def installed(here, monkeypatch) -> Iterator[Install]:
    """Return what installs a package: its entry points and the texts of its files."""
    site, caches = here / "site", (plugin.plugins, plugin.load_target)
    monkeypatch.delattr(ATTENTIONS, "data", raising=False)
    monkeypatch.syspath_prepend(str(site))

    def forget() -> None:
        for cache in caches:
            cache.cache_clear()
        sys.modules.pop("vitcli.cli.eval", None)  # it takes the options of plugins once
        roots = {path.stem for path in site.iterdir()}
        for name in [name for name in sys.modules if name.split(".")[0] in roots]:
            del sys.modules[name]

    def write(points: dict[str, str], files: dict[str, str]) -> None:
        name = next(iter(points))
        info = f"{name}-0.1.dist-info"
        entries = "\n".join(["[vitcli]", *(f"{k} = {v}:plugin" for k, v in points.items())])
        about = {"METADATA": f"Name: {name}\nVersion: 0.1", "entry_points.txt": entries}
        about = {f"{info}/{file}": text for file, text in about.items()}
        for file, text in (about | files).items():
            (site / file).parent.mkdir(parents=True, exist_ok=True)
            (site / file).write_text(text)
        forget()

    yield write
    forget()


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("from vitcli.plugin", "from vitcli.plugins_of_1999", "ModuleNotFoundError"),
        ("plugin = Plugin", "plugin = dict", "no Plugin"),
        ('"confident": ', '"mae": ', "task.name mae"),
        ('"roundness": "', '"explain": "', "the command explain"),
        ('"figure": ', '"figur": ', "no table 'figur'"),
        ('{"eval": ', '{"train": ', "'train' takes no options"),
        ("plugin = ", "raise GeneratorExit\nplugin = ", "GeneratorExit"),
        ("plugin = ", "import torch\ntorch.manual_seed = max\nplugin = ", "changes torch"),
    ],
)
def test_a_broken_plugin_is_one_line_and_the_rest_works(installed, old, new, reason):
    """Also one whose names are taken. What it prints is no result."""
    file = "vitcli_rings/__init__.py"
    files = RINGS | {file: "print('loud')\n" + RINGS[file].replace(old, new)}
    installed({"rings": "vitcli_rings"}, files)
    assert reason in rings_in(printed("plugins", "--json"))["state"]
    installed({"rings": "vitcli_rings"}, files)
    talk = said(2, "roundness", "run")
    assert talk.count("warning") == 1
    assert "the plugin rings is off" in talk


@pytest.mark.parametrize("module", ["command", "option", "attention"])
def test_an_error_in_what_is_used_is_one_line(installed, module):
    file, points = f"vitcli_rings/{module}.py", {"rings": "vitcli_rings"}
    installed(points, RINGS | {file: "1 / 0\n"})
    place = f"{file}:1: ZeroDivisionError"
    if module == "command":
        assert "ZeroDivisionError" in printed("--help")
        assert place in said(2, "roundness", "run")
    elif module == "option":
        assert "--rings" not in printed("eval", "--help")
        installed(points, {file: "def rings(run, common, *, probe: bool = False): ...\n"})
        assert "neighbours" in printed("eval", "--help")
        Path("site", file).unlink()
        installed(points, {})
        assert "--probe" in printed("eval", "--help")
    else:
        assert place in said(2, "train", "-s", "model.attention=rings", "--dry-run")


def adds(field: str, name: str, target: str) -> str:
    rows = f"rows={{{field!r}: {{{name!r}: {target!r}}}}}"
    return f"from vitcli.plugin import Plugin\nplugin = Plugin(about='', {rows})\n"


PART = adds("model.attention", "far", "far_code.part:ROW")


@pytest.mark.parametrize(
    ("points", "files", "changed"),
    [
        ({"far": "far_pk"}, {"far_pk/__init__.py": PART, "far_code/part.py": ""}, 1),
        ({"far": "far_org.pk"}, {"far_org/pk/__init__.py": PART, "far_org/pk/helper.py": ""}, 1),
        ({"far": "far_alone"}, {"far_alone.py": PART, "far_other.py": ""}, 0),
        (
            {"near": "far_near", "far": "far_pk"},
            {"far_near/__init__.py": PART.replace("far'", "near'"), "far_pk/__init__.py": PART},
            1,
        ),
    ],
)
def test_the_code_of_a_package_is_what_its_entry_points_and_rows_name(
    installed, points, files, changed, monkeypatch
):
    installed(points, files)
    name, changed = next(iter(points)), [*files][changed]
    before = plugin.code_of_package(name)
    monkeypatch.setenv(plugin.VARIABLE, "no:near")
    assert plugin.code_of_package(name) == before, "a switch is no change of the code"
    installed({"unrelated": "unrelated"}, {"unrelated/__init__.py": PART.replace("far", "un")})
    assert plugin.code_of_package(name) == before
    for file in ("far_other.py", changed):
        Path("site", file).write_text(f"{files.get(file, '')}# changed\n")
        assert (plugin.code_of_package(name) != before) == (file == changed)


def test_a_name_of_the_core_stays_the_cores(installed, monkeypatch):
    warnings = list[str]()
    monkeypatch.setattr(plugin, "warn", warnings.append)
    installed({"taker": "taker"}, {"taker/__init__.py": adds("model.attention", "softmax", "t:T")})
    config = {"model": {"attention": "softmax"}}
    table = Registry[AttentionRow](ATTENTIONS.field)
    table |= ATTENTIONS.built_in
    assert table["softmax"] is ATTENTIONS.built_in["softmax"]
    assert ["softmax" in text for text in warnings] == [True]
    assert own_code.plugins_of(config) == {}
    monkeypatch.setenv(plugin.VARIABLE, "no:taker")
    assert own_code.missing_plugin(config) == ""


def test_what_a_row_changes_of_torch_is_refused_and_undone(installed):
    change = "import torch\ntorch.set_default_dtype(torch.float64)\nROW = 1\n"
    installed({"bad": "bad_pk"}, {"bad_pk/__init__.py": PART, "far_code/__init__.py": change})
    with pytest.raises(plugin.PluginError, match=r"changes torch.*no:bad"):
        plugin.load_target("far_code:ROW")
    assert torch.get_default_dtype() == torch.float32


def test_of_two_plugins_with_one_row_either_can_be_switched_off(installed, monkeypatch):
    for name in ("first", "second"):
        installed({name: f"{name}_pk"}, {f"{name}_pk/__init__.py": PART})
    states = []
    for off in ("", "no:first", "no:second", "no:first,no:second"):
        monkeypatch.setenv(plugin.VARIABLE, off)
        states.append((not plugin.why_off("first"), not plugin.why_off("second")))
    assert states == [(True, False), (False, True), (True, False), (False, False)]
    assert plugin.missing_for("model.attention", "far") == "needs the plugin first, which is off"
    monkeypatch.delenv(plugin.VARIABLE)
    assert plugin.missing_for("model.attention", "far") == ""


def test_a_broken_command_of_a_package_leaves_its_group_and_completion(installed, capsys):
    commands = "commands={'runs bad': 'bad_code:run', 'badly': 'bad_code:run'}"
    text = f"from vitcli.plugin import Plugin\nplugin = Plugin(about='', {commands})\n"
    installed({"bad": "bad_pk"}, {"bad_pk.py": text, "bad_code.py": "1 / 0\n"})
    printed("runs", "ls")
    for command in ("runs bad", "badly"):
        assert "bad_code.py:1: ZeroDivisionError" in said(2, *command.split(), "run", "--option", 1)
    assert "badly" in offered("vitcli bad", capsys)


@pytest.mark.parametrize("text", [PART, "1 / 0"])
def test_a_package_that_is_off_or_broken_need_not_be_installed(installed, monkeypatch, text):
    installed({"far": "far_pk"}, {"far_pk/__init__.py": text})
    monkeypatch.setenv(plugin.VARIABLE, "no:far" if text == PART else "")
    config = {"code": {"far": "0.1 123"}, "model": {"attention": "unknown"}}
    reason = "needs the plugin far, which is off"
    assert own_code.missing_code(config["code"]) == ["far"]
    assert own_code.needed(["far"], None) == reason
    assert own_code.missing_plugin(config, ["far"]) == ("" if text == PART else reason)
    words = ("train", "-s", "model.attention=far", "--dry-run")
    assert (reason in said(2, *words)) == (text == PART)


def test_an_error_in_a_package_is_located_as_in_own_code(installed):
    installed({"far": "far_pk"}, {"far_pk.py": f"{PART}def use():\n    1 / 0\n"})
    use = plugin.load_target("far_pk:use")
    with pytest.raises(ZeroDivisionError) as caught:
        use()
    assert "far_pk.py:4: ZeroDivisionError" in own_code.locate_in_own_code(caught.value)
