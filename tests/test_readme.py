"""README's commands run, its Python runs, its tables are those of the result files."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from vitcli.cli.main import app

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, re.DOTALL)
COMMANDS = [
    line.partition(" #")[0].strip()
    for language, block in BLOCKS
    if language == "bash"
    for line in block.splitlines()
    if line.startswith("vitcli")
]


def invoke(command: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, shlex.split(command)[1:])
    return result.exit_code, result.output


@pytest.fixture
def trained(here, workshop) -> Path:
    """A folder in which 'vitcli train' has run, cut short, and a picture lies."""
    Image.new("RGB", (40, 30), "teal").save("photo.jpg")
    shared = workshop / "quickstart"
    if not (shared / "result.json").exists():
        code, output = invoke(f"vitcli train --epochs 1 --limit-batches 2 -o {shared}")
        assert code == 0, output
    shutil.copytree(shared, "runs/quickstart/train/seed0")
    return here


def test_there_are_commands():
    assert len(COMMANDS) >= 6


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_runs(trained, command):
    if command.startswith("vitcli import"):  # other programs' weights are not here
        assert invoke(command) == (4, "error: vit.pt: not a file\n")
        return
    if "--resume quickstart" in command:
        command = command.replace("epochs=20", "epochs=2")
    elif command.startswith("vitcli bench"):
        command += " --lengths 64,128" if "attention" in command else ""
        command += " --rounds 1 --seconds 0"
    elif "train cifar10" in command or "PATH" in command:
        command = command.replace(" --data imagefolder:PATH", "") + " --dry-run"
    elif command.startswith("vitcli ablate") and not re.search("--(dry-run|status|table)", command):
        command += " --status"
    elif command.startswith("vitcli train"):
        command += " --epochs 1 --limit-batches 1 --rerun"
    elif command.startswith("vitcli visualize quickstart"):
        command += " --num-images 20" + ("" if "--what" in command else " --what curves,distance")
    code, output = invoke(command)
    if command == "vitcli visualize cifar10-pocket":  # its test images are not here
        assert (code, "vitcli data get cifar10" in output) == (4, True), output
        return
    partly = 3 if "--table-only" in command else 0  # nothing is trained yet
    assert code in (0, partly), output


def test_the_python_runs(environment):
    (code,) = [block for language, block in BLOCKS if language == "python"]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "'test_accuracy': " in done.stdout


def test_the_error_that_readme_shows_is_the_error():
    shown = re.search(r"\$ (vitcli .*)\n(error: .*)\n", README)
    assert shown is not None
    code, output = invoke(shown[1])
    assert code == 2
    assert output.strip() == shown[2]


def test_every_slot_row_is_named():
    from vitcli.core.spec import FAMILIES
    from vitcli.core.spec.slots import SLOTS

    slots = (
        "family",
        "patch_embed",
        "pos_embed",
        "attention",
        "ffn",
        "norm",
        "pool",
        "head",
        "init",
    )
    for slot in (*slots, "residual"):
        row = re.search(rf"\| `model\.{slot}` \| (.*?) \|", README)
        assert row is not None, slot
        named = set(re.findall(r"`(\w+)`", row[1].partition(";")[0]))
        assert named == ({"family": FAMILIES} | SLOTS)[slot].keys()


def test_the_study_that_readme_shows_is_one(here):
    from vitcli.runner.study.definition import load_study

    (text,) = [block for language, block in BLOCKS if language == "yaml"]
    Path("mine.yaml").write_text(text)
    study = load_study("mine.yaml")
    assert [variant.name for variant in study.variants] == ["baseline", "no-layernorm", "resnet"]
    assert len(study.trials()) == 3 * 3 * 2
    assert study.reference is not None


def test_every_study_is_named():
    studies = [*(ROOT / "experiments").glob("ablation-*"), *(ROOT / "experiments").glob("study-*")]
    for path in studies:
        name = path.stem.removeprefix("ablation")
        assert f"`{path.stem}`" in README or f"`{name}`" in README, path.stem


def test_the_tables_are_those_of_the_result_files():
    subprocess.run([sys.executable, str(ROOT / ".ci/readme.py"), "--check"], check=True)
