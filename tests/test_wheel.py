"""The wheel, installed in its own environment outside the checkout, runs the first commands."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from vitcli.version import COMMIT

ROOT = Path(__file__).parents[1]


def run(*command: object, cwd: Path) -> str:
    """Return the output of a command that must not find this checkout."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.ci
def test_a_package_knows_the_commit_that_it_was_built_from(here):
    """Also one from an sdist. Without git and without a commit it is built, too."""
    sources = here / "sources"
    shutil.copytree(ROOT / "vitcli", sources / "vitcli", ignore=shutil.ignore_patterns("pre*"))
    shutil.copytree(ROOT / "experiments", sources / "experiments", ignore=only_yaml)
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, sources)
    assert build(sources, "wheel", here / "bare") is None
    git = ("git", "-c", "user.name=x", "-c", "user.email=x@example.org")
    run(*git, "init", "-q", cwd=sources)
    run(*git, "add", ".", cwd=sources)
    run(*git, "commit", "-q", "-m", "x", cwd=sources)
    expected = {"commit": run("git", "rev-parse", "HEAD", cwd=sources).strip(), "dirty": False}
    assert build(sources, "sdist", here / "sdist") == expected
    (archive,) = (here / "sdist").glob("*.tar.gz")
    shutil.unpack_archive(archive, here / "unpacked", filter="data")
    (unpacked,) = (here / "unpacked").iterdir()
    assert build(unpacked, "wheel", here / "again") == expected
    asked = "from vitcli.version import source_commit; print(source_commit())"
    assert expected["commit"] in run(sys.executable, "-c", asked, cwd=unpacked)


def only_yaml(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if not name.endswith(".yaml")]


def build(sources: Path, target: str, output: Path) -> dict | None:
    """Build a package with hatchling; return its commit.json."""
    run(sys.executable, "-m", "hatchling", "build", "-t", target, "-d", output, cwd=sources)
    (path,) = output.iterdir()
    if target == "wheel":
        with zipfile.ZipFile(path) as wheel:
            found = [wheel.read(name) for name in wheel.namelist() if name.endswith(COMMIT)]
    else:
        with tarfile.open(path) as archive:
            names = [name for name in archive.getnames() if name.endswith(COMMIT)]
            found = [archive.extractfile(name).read() for name in names]
    return json.loads(*found) if found else None
