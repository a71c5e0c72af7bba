"""The wheel, installed in its own environment outside the checkout, runs the first commands."""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).parents[1]


def run(*command: object, cwd: Path) -> str:
    """Return the output of a command that must not find this checkout."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def installed(here) -> Path:
    """Return the programs of a new environment with the wheel and our dependencies."""
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    run(*pip, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", "dist", ROOT, cwd=here)
    (wheel,) = (here / "dist").glob("vitcli-*.whl")
    venv.create(here / "env", symlinks=True)
    python = here / "env" / "bin" / "python"
    run(*pip, "--python", python, "install", "-q", "--no-deps", "--no-index", wheel, cwd=here)
    paths = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=here)
    dependencies = {sysconfig.get_path(name) for name in ("purelib", "platlib")}
    (Path(paths.strip()) / "dependencies.pth").write_text("\n".join(sorted(dependencies)))
    return python.parent


@pytest.mark.ci
def test_the_first_commands_run_from_the_wheel(installed, here):
    place = run(installed / "python", "-c", "import vitcli; print(vitcli.__file__)", cwd=here)
    assert Path(place.strip()).is_relative_to(here / "env")
    vitcli = installed / "vitcli"
    trained = run(vitcli, "train", "--epochs", "1", "--limit-batches", "2", cwd=here)
    assert "test accuracy" in trained
    assert "accuracy" in run(vitcli, "eval", "quickstart", cwd=here)
    Image.new("RGB", (40, 30), "teal").save(here / "photo.png")
    assert "photo.png" in run(vitcli, "predict", "photo.png", cwd=here), "the bundled model"
    shipped = {path.stem for path in (ROOT / "experiments").glob("*.yaml")}
    listed = run(vitcli, "experiments", "ls", cwd=here)
    assert not [name for name in shipped if name not in listed]
