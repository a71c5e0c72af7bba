"""The sdist and the wheel: their files, their bits, and the first commands of a wheel alone."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from vitcli.version import COMMIT

pytestmark = pytest.mark.ci

ROOT = Path(__file__).parents[1]
GIT = ("git", "-c", "user.name=x", "-c", "user.email=x@example.org")
YEAR_2020 = 1577880000


def run(*command: object, cwd: Path, umask: int = -1, **variables: str) -> str:
    """Return the output of a command that must not find this checkout."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    options: dict[str, Any] = {"cwd": cwd, "umask": umask, "env": environment | variables}
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def build(sources: Path, target: str, output: Path, umask: int = -1) -> Path:
    command = (sys.executable, "-m", "hatchling", "build", "-t", target, "-d", output)
    run(*command, cwd=sources, umask=umask)
    (path,) = output.iterdir()
    return path


def files_of(package: Path) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as place:
        shutil.unpack_archive(package, place, "zip" if package.suffix == ".whl" else "gztar")
        (root,) = [Path(place)] if package.suffix == ".whl" else Path(place).iterdir()
        files = [path for path in root.rglob("*") if path.is_file()]
        return {str(path.relative_to(root)): path.read_bytes() for path in files}


def commit_in(package: Path) -> dict | None:
    text = files_of(package).get(f"vitcli/{COMMIT}")
    return json.loads(text) if text else None


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> Path:
    """A repository with one commit: this checkout with its uncommitted changes."""
    folder = tmp_path_factory.mktemp("sources")
    for name in filter(None, run("git", "ls-files", "-z", cwd=ROOT).split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    run(*GIT, "init", "-q", cwd=folder)
    run(*GIT, "add", ".", cwd=folder)
    run(*GIT, "commit", "-q", "-m", "x", cwd=folder)
    return folder


@pytest.fixture(scope="module")
def built(sources, tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("built")
    return {target: build(sources, target, folder / target) for target in ("wheel", "sdist")}


def test_another_clone_at_another_time_gives_the_same_bits(sources, built, here):
    clone = here / "clone"
    run("git", "clone", "-q", sources, clone, cwd=here, umask=0o077)
    for clutter in ("runs/x/config.yaml", "vitcli/__pycache__/x.pyc"):
        (clone / clutter).parent.mkdir(parents=True, exist_ok=True)
        (clone / clutter).write_text("x")
    for path in clone.rglob("*"):
        os.utime(path, (YEAR_2020, YEAR_2020))
    for target, package in built.items():
        again = build(clone, target, here / target, umask=0o077)
        assert sha256(again.read_bytes()).digest() == sha256(package.read_bytes()).digest()


def test_the_chore_puts_the_packages_of_the_last_commit_into_dist(sources, built, here):
    clone = here / "clone"
    run("git", "clone", "-q", sources, clone, cwd=here)
    (clone / "README.md").write_text("not committed")
    python = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    sums = run("bash", ".ci/do", "release", cwd=clone, PATH=python)
    assert {path.name for path in (clone / "dist").iterdir()} == {p.name for p in built.values()}
    for package in built.values():
        assert sha256(package.read_bytes()).hexdigest() in sums


def test_an_sdist_gives_the_same_wheel(built, here):
    (here / "unpacked").mkdir()
    run("tar", "xf", built["sdist"], cwd=here / "unpacked")
    (unpacked,) = (here / "unpacked").iterdir()
    wheel = build(unpacked, "wheel", here / "again")
    assert sha256(wheel.read_bytes()).digest() == sha256(built["wheel"].read_bytes()).digest()
    asked = "from vitcli.version import source_commit; print(*source_commit())"
    commit = run(sys.executable, "-c", asked, cwd=unpacked).split()
    assert commit == [str(each) for each in (commit_in(built["wheel"]) or {}).values()]


def test_the_packages_hold_the_sources_of_the_program_and_nothing_else(sources, built):
    tracked = run("git", "ls-files", "vitcli", "experiments/*.yaml", cwd=sources).split()
    program = {name for name in tracked if name.count("/") == 1 or name.startswith("vitcli/")}
    program.add(f"vitcli/{COMMIT}")
    wheel = {name for name in files_of(built["wheel"]) if ".dist-info/" not in name}
    assert wheel == {name.replace("experiments/", "vitcli/experiments/") for name in program}
    beside = {"pyproject.toml", "hatch_build.py", ".gitignore", "PKG-INFO"}
    beside |= {"README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff"}
    assert files_of(built["sdist"]).keys() == program | beside


def test_a_package_knows_the_commit_that_it_was_built_from(sources, built, here):
    expected = {"commit": run("git", "rev-parse", "HEAD", cwd=sources).strip(), "dirty": False}
    assert [commit_in(package) for package in built.values()] == [expected, expected]
    shutil.copytree(sources, here / "bare", ignore=shutil.ignore_patterns(".git", "results"))
    assert commit_in(build(here / "bare", "wheel", here / "out")) is None
