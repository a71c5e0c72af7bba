"""The page on installing: each of its commands is typed as it stands, away from this checkout."""

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections import defaultdict
from pathlib import Path

import pytest
from filelock import FileLock
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.test_wheel import GIT, ROOT, sources

__all__ = ["sources"]

PAGE = (ROOT / "docs" / "how-to" / "install.md").read_text()
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE))
TYPED = {title: text for title, text in SECTIONS.items() if "```bash" in text}
COMMANDS = re.compile(
    r"```bash\n(.*?)```|`((?:pip|uv|pipx) [^`\n]*(?:ADDRESS|PACKAGE))`", re.DOTALL
)
"""Commands in blocks, and those in the text that name what the reader puts in.

``uv tool install --torch-backend cpu .`` is not typed, because it asks the index of PyTorch.
"""
PROGRAMS = {"pip": "clone/.venv/bin", "uv": "uv", "pipx": "pipx"}
"""What installs -> the folder of the programs that it installs."""
UV_NAMES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "constraint": "UV_CONSTRAINT",
}
"""Option of pip -> uv's name of it: uv does not read the configuration of pip."""
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


def test_the_page_has_every_extra():
    rows = re.findall(r"^\|.*\| (`.*`) \|$", SECTIONS["Extras"], re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", " ".join(rows))) == sorted(EXTRAS)


def test_the_pins_are_versions_with_hashes_that_the_project_allows():
    text = (ROOT / ".ci" / "pins.txt").read_text()
    assert "//" not in text, "an address"
    pins = defaultdict[str, list[Requirement]](list)
    for entry in text.replace("\\\n", "").splitlines():
        requirement, *hashes = entry.split(" --hash=")
        pin = Requirement(requirement)
        assert hashes, entry
        assert re.fullmatch(r"==[^,*]+", str(pin.specifier)), entry
        pins[pin.name].append(pin)
    needed = [*PROJECT["dependencies"], *EXTRAS["test"], *EXTRAS["docs"], "hatchling"]
    for allowed in map(Requirement, needed):
        pinned = pins[canonicalize_name(allowed.name)]
        assert pinned, allowed
        for pin in pinned:
            assert allowed.specifier.contains(str(pin.specifier)[2:]), f"{allowed}; pinned: {pin}"


def test_the_container_is_made_with_the_commands_of_readme():
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    readme = (ROOT / "README.md").read_text().splitlines()
    venv, install = container["postCreateCommand"].rsplit(" && ", 1)
    assert {venv, install} <= {*readme}


class Shell:
    """A shell in a clone whose programs are installed below ``folder``."""

    def __init__(self, folder: Path, index: dict[str, str]) -> None:
        self.folder, self.clone = folder, folder / "clone"
        self.variables = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        self.variables |= index | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "UV_TOOL_DIR": f"{folder}/uv-tools",
            "UV_TOOL_BIN_DIR": f"{folder}/uv",
            "UV_INDEX_STRATEGY": "unsafe-best-match",  # as pip
            "PIP_NO_COMPILE": "no",  # --no-compile
            "PIPX_HOME": f"{folder}/pipx-home",
            "PIPX_BIN_DIR": f"{folder}/pipx",
            "PIPX_MAN_DIR": f"{folder}/man",
            "PIPX_COMPLETION_DIR": f"{folder}/completion",
        }

    def run(self, command: str) -> str:
        script = f"cd {self.clone}; . .venv/bin/activate 2>/dev/null; {command}"
        done = subprocess.run(
            ["bash", "-c", script], env=self.variables, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    def commit(self) -> str:
        """Make a commit, so that a new installation differs from the one before."""
        self.run(f"{shlex.join(GIT)} commit -q --allow-empty -m new")
        return self.run("git rev-parse --short=9 HEAD").strip()


@pytest.fixture(scope="module")
def index(tmp_path_factory) -> dict[str, str]:
    """The package index of pip, in the variables of uv."""
    pip = (sys.executable, "-m", "pip")
    asked = [*pip, "download", "-q", "--no-deps", "-d", tmp_path_factory.mktemp("asked"), "typer"]
    done = subprocess.run(asked, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no package index can be reached: {done.stderr.strip().splitlines()[-1]}")
    listed = subprocess.run([*pip, "config", "list"], capture_output=True, text=True, check=True)
    options = re.findall(r"\.([\w-]+)='(.*)'$", listed.stdout, re.MULTILINE)
    return {UV_NAMES[name]: value for name, value in options if name in UV_NAMES}


@pytest.fixture
def shell(title, sources, index, here, tmp_path_factory) -> Shell:
    """A clone, and for pip an environment with torch: it takes minutes for what uv links."""
    subprocess.run(["git", "clone", "-q", sources, here / "clone"], check=True)
    shell = Shell(here, index)
    if re.search("^pip ", TYPED[title], re.MULTILINE):
        shell.run("uv venv -q --seed -p python3 .venv")
        with FileLock(tmp_path_factory.getbasetemp().parent / "uv.lock"):  # it unpacks gigabytes
            shell.run("uv pip install -q torch torchvision")
    return shell


@pytest.mark.ci
@pytest.mark.parametrize("title", TYPED)
def test_every_command_installs_this_version_as_typed(shell, title):
    commit = shell.commit()
    for block, inline in COMMANDS.findall(TYPED[title]):
        for command in (block or inline).splitlines():
            if re.search(r" '?\.(\[|$| )", command):
                commit = shell.commit()
            command = command.replace("ADDRESS", f"file://{shell.clone}")
            command = command.replace("PACKAGE", "einops")
            shell.run(command)
            check(shell, command, commit)
    if title == "With uv":
        shell.run("uv tool install . && cd .. && uv/vitcli doctor")


def check(shell: Shell, command: str, commit: str) -> None:
    """Check the program that a command installs, its dependencies and its extras."""
    installer, *words = shlex.split(command)
    if installer not in PROGRAMS or "wheel" in words:
        return
    program = shell.folder / PROGRAMS[installer] / "vitcli"
    if "uninstall" in words:
        assert not program.exists()
        return
    python = program.resolve().parent / "python"
    shell.run(f"uv pip check -p {python}")
    extras = re.findall(r"\w+", command.partition("[")[2])
    names = [Requirement(text).name for extra in extras for text in EXTRAS[extra]]
    names += {"einops"} & {*words}
    for name in names:
        shell.run(f"uv pip show -q -p {python} {name}")
    if "einops" not in words:
        version = f"vitcli {PROJECT['version']} (commit {commit})\n"
        assert shell.run(f"cd ..; {program} --version") == version, command
