"""README, docs/ and help: commands run, links resolve, generated tables are current."""

import importlib
import json
import re
import shlex
import shutil
import sys
import tomllib
from collections import Counter
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image
from typer.testing import CliRunner

import vitcli
from tests.cli.commands import commands_of, printed, root
from tests.cli.test_advice import problems
from tests.conftest import draw_pictures
from tests.own_code import forget
from tests.plugin_rows import EVERY
from vitcli.cli.main import app

__all__ = ["forget"]
ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]
COURSE = ROOT / "docs" / "tutorials" / "course.ipynb"
LINKING = [
    *PAGES,
    COURSE,
    ROOT / "AGENTS.md",
    ROOT / "CHANGELOG.md",
    ROOT / "llms.txt",
    ROOT / "SECURITY.md",
    *ROOT.glob("tests/f*/**/README.md"),
]
GENERATED = re.compile(r"^<!-- ([\w-]+) -->\n.*?^<!-- /\1 -->$", re.DOTALL | re.MULTILINE)
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"`([^`\n]+)`")
EXAMPLE = re.compile(r"^Example:\n((?: +.+\n?)+)", re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")
PROGRAMS = ("vitcli ", "python ", "pytest ", ".ci/", "DATA=", "pip ", "uv ", "pipx ")

NOT_RUN = {
    r"python3 -m venv|\. \.venv|pip install": "installs packages; .ci/run does it",
    r"pip (wheel|download)|uv |pipx ": "installs packages; tests/test_install.py",
    r"\.ci/(do\b|pins)": "runs checks or builds packages; .ci/run and tests/test_wheel.py do it",
    r"export |jupyter |mkdir |cd ": "prepares a class; tests/plugins/page/test_class.py",
    r"tensorboard |ray start|torchrun ": "starts servers or processes; tests/runner/*/test_*.py",
    r"zensical ": "tests/browser/test_site.py",
    r"vitcli --install-completion": "writes into the home folder; tests/cli/test_complete.py",
    r"pytest|lint-imports|ruff |mypy$": "runs the tests or checks; .ci/run does it",
    r"\.ci/(run|lowest)$": "runs this test",
    r"python \.ci/docs\.py": "another test here runs it with --check",
    r"python \.ci/without_plugins": "takes minutes; .ci/run runs it",
    r"vitcli .*(confident|rings|roundness|sizes)": "needs a package; tests/plugins",
    r"python \.ci/pictures": "takes minutes and needs Chromium",
    r"python -m tests\.(faults|releases)\.": "takes minutes; its own tests run short ones",
    r"python -m tests\.(gpu_stub|fuzz)\.": "needs CUDA or atheris; its own tests do without",
    r"python -m experiments\.(statistics|gates)": "takes minutes; test_gates.py runs short ones",
    r"python -m experiments\.(night|pilots|search)": "takes hours; tests of their own run toys",
    r"python experiments/claims/": "takes minutes, or writes a page; test_claims.py checks",
    r"(python )?experiments/(gpu|speed)/": "takes minutes; tests/gpu_stub runs toys",
    r"vitcli runs compare": "needs committed results; tests/runner/study/test_expected.py",
    r"vitcli decide (night|.*--adopt)": "needs a campaign; tests/plugins/decide",
    r"vitcli search ": "takes minutes; tests/cli/test_ablate.py runs short ones",
    r"vitcli .*train\.compile=true": "torch.compile takes minutes",
    r"vitcli train .*(--init timm:|pretrained=true)": "downloads weights; tests/plugins/timm",
    r"vitcli export .*(--format (onnx|pt2)|--to )": "takes seconds; tests/plugins/exports",
    r"vitcli ablate .*--engine (ray|slurm)": "needs a cluster; tests/plugins/{ray,slurm}",
    r"vitcli (.*--code|ablate \./cosine)": "needs the files of the page; tests/test_own_parts.py",
    r"vitcli .*(--format trackio|--track )": "needs their library; tests/plugins/trackers",
}
"""Pattern of a command that no test here runs -> the reason."""
ENDS = {
    "vitcli import vit.pt": (2, "theirs.yaml: no such experiment file"),
    "vitcli data get cifar10": (4, "cifar-10-python.tar.gz"),
    "vitcli runs rm quickstart": (2, "type --yes"),
    "vitcli runs page runs/ablation-quickstart": (4, "no such folder"),
    "vitcli runs watch ablation-quickstart": (4, "'vitcli ablate STUDY' starts a study"),
    "vitcli table ": (4, "cannot be read"),
    "vitcli decide --csv": (4, "cannot be read"),
    "vitcli decide idea": (4, "cannot be read"),
    "vitcli train finetune --data imagefolder:pictures --name own --init vit.pt": (4, "'vit.pt'"),
    "vitcli data check pictures --against pets": (4, "does not say which pictures"),
    "vitcli eval clip": (4, "no run is called 'clip'"),
}
"""Beginning of a command whose input is not here -> its exit code and a part of its message."""


def blocks(page: Path, language: str) -> list[str]:
    return [block for name, block in BLOCK.findall(page.read_text()) if name == language]


def page_commands(page: Path) -> list[str]:
    lines = [line.strip() for block in blocks(page, "bash") for line in block.splitlines()]
    inline = CODE.findall(BLOCK.sub("", GENERATED.sub("", page.read_text())))
    inline = [code for code in inline if code.startswith(PROGRAMS)]
    parts = [part for line in [*lines, *inline] for part in line.split("&&")]
    return [re.sub(r" > \S+$", "", part.strip()) for part in parts if part.strip()]


SHOWN = [
    *(command for page in PAGES for command in page_commands(page)),
    *(
        line.strip()
        for _, each in [("vitcli", root()), *commands_of(root())]
        if (found := EXAMPLE.search(each.help or ""))
        for line in found[1].splitlines()
    ),
]
COMMANDS = list(dict.fromkeys(SHOWN))


PATHS = [path for path, _ in commands_of(root())]


def shows(command: str) -> set[str]:
    """Return a command's name and its settings, those of images and of the depth without values."""
    words = shlex.split(re.sub(r"(data\.\w+|model\.depth)=\S+", r"\1", command))
    name = " ".join(words[: 3 if " ".join(words[:3]) in PATHS else 2])
    settings = {value for option, value in pairwise(words) if option == "-s"}
    return {name, *(f"{name} {each}" for each in settings)}


def covering(commands: list[str]) -> list[str]:
    kept, seen = [], set[str]()
    for command in sorted(commands, key=lambda each: (-len(shows(each)), -len(each))):
        if not shows(command) <= seen:
            kept.append(command)
            seen |= shows(command)
    return kept


RUN = covering([line for line in COMMANDS if not any(re.match(name, line) for name in NOT_RUN)])


SMALL_DATA = " --data imagefolder:pictures -s data.resize=32"
"""Options of a training on 104 pictures of the size of the generated ones, which are 12,000."""


def shortened(command: str) -> str:
    command = command.replace("corrections.csv --name corrected", "copies.csv --name leaves")
    command = command.replace(" experiments/results/ship", f" {ROOT}/experiments/results/ship")
    if command.startswith("vitcli bench ") and "--help" not in command:
        brief = " --rounds 1 --seconds 0" + " --lengths 64,128" * ("attention" in command)
        size = "" if "attention" in command else " -s train.batch_size=8"
        return re.sub(r"--lengths \S+", "", command) + brief + size
    if command.startswith("vitcli ablate"):
        command += " --only baseline" * ("factorial" in command)  # of its 32 variants
        stays_short = re.search("--(dry-run|status|table)", command)
        return command if stays_short else f"{command} --status"
    if command.startswith("vitcli visualize"):
        what = "" if "--what" in command else " --what curves,distance"
        return f"{command} --num-images 4{what}"
    if command.startswith(("vitcli eval quickstart", "vitcli eval pets", "vitcli eval leaves")):
        return f"{command} --limit-batches 2"
    if command.startswith("vitcli decide") and "--csv" not in command:
        return f"{command} --dry-run" + " --data imagefolder:pictures" * ("-s" in command)
    return shortened_training(command) if command.startswith("vitcli train") else command


def shortened_training(command: str) -> str:
    is_large = re.search("train (cifar10|pretrain|finetune-mae|ssat|clip)", command)
    if is_large and "--dry-run" not in command:
        return f"{command} --dry-run"
    if command == "vitcli train --resume pets":
        return command  # it takes no options
    if not re.search("--data|--resume", command):
        command = command.replace("val_split=1000", "val_split=20") + SMALL_DATA
    if "imagefolder" in command:
        command += f" -s train.batch_size={2 if 'resnet18' in command else 16}"
    if "--resume quickstart" in command:
        return command.replace("epochs=20", "epochs=2")
    if "resnet18" in command:
        return f"{command} --dry-run"
    fresh = "" if "--resume" in command or "--dry-run" in command else " --rerun"
    return f"{command} --epochs 1 --limit-batches 2{fresh}"


@pytest.fixture
def trained(here, workshop) -> Path:
    Image.new("RGB", (40, 30), "teal").save("photo.jpg")
    pictures = draw_pictures(here)
    for old, new in {"dark": "beech", "bright": "red oak"}.items():
        for split in ("train", "test"):
            shutil.copytree(pictures / split / old, here / "my leaves" / split / new)
    for number, values in enumerate(np.random.default_rng(0).integers(0, 4096, (20, 12, 12), "u2")):
        folder = Path("cells") / ("control", "treated")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        pages = [Image.fromarray(page) for page in (values, values // 2, 4095 - values)]
        pages[0].save(folder / f"{number}.tif", save_all=True, append_images=pages[1:])
    Path("corrections.csv").write_text("file,label\ntrain/dark/1.png,bright\n")
    Path("copies.csv").write_text("file,label\ntest/beech/1.png,\n")
    paths = [str(path.relative_to(here)) for path in sorted(pictures.glob("*/*/*.png"))]
    for table, column, cells in (("labels", "labels", ("a", "a;b")), ("ages", "target", "37")):
        lines = [f"{path},{cells['bright' in path]}" for path in paths]
        Path(f"{table}.csv").write_text("\n".join([f"path,{column}", *lines]))
    study = (ROOT / "docs/tutorials/first-ablation.md").read_text()
    Path("pool.yaml").write_text(study.split("```yaml\n")[1].split("```")[0])
    shared = workshop / "quickstart"
    if not (shared / "result.json").exists():
        printed("train", "--epochs", 1, "--limit-batches", 2, "-o", shared)
    shutil.copytree(shared, "runs/quickstart/train/seed0")
    for name in ("pets", "leaves", "tags"):
        shutil.copytree(shared, f"runs/{name}")
    shutil.copy(ROOT / "experiments" / "quickstart.yaml", "mine.yaml")
    return here


@pytest.mark.plugin(*EVERY)
def test_every_command_can_be_typed():
    for line in (line for line in COMMANDS if line.startswith("vitcli ")):
        command, words = root(), shlex.split(line.partition(" | ")[0])[1:]
        while hasattr(command, "commands") and words and words[0] in command.commands:
            command = command.commands[words.pop(0)]
        if words and not hasattr(command, "commands"):
            command.make_context("vitcli", words)
    assert [each for command in COMMANDS for each in problems(command)] == []


@pytest.mark.plugin(*EVERY)
@pytest.mark.parametrize("command", RUN)
def test_every_command_and_setting_runs(trained, command):
    if command in PATHS:
        command += " --help" if command != "vitcli train" else ""
    if " cp " in command:
        Path("mine.yaml").unlink()
    result = CliRunner().invoke(app, shlex.split(shortened(command))[1:])
    code, output = result.exit_code, result.output
    for beginning, (expected, message) in ENDS.items():
        if command.startswith(beginning):
            assert (code, message in output) == (expected, True), output
            return
    partly = 3 if "--table-only" in command else 0  # nothing is trained yet
    assert code in (0, partly), output


PYTHON = ROOT / "docs/reference/python.md"
SHAPE = re.compile(r"^(\w+) = .*#.*?\(([\d, ]+)\)", re.MULTILINE)
"""A line that makes a tensor, with its shape in a comment."""


@pytest.fixture
def small_trainings(monkeypatch, without_workers, sketched) -> None:
    """Let Python train on a few images of each data set, and studies on small pictures."""
    fit = vitcli.fit

    def fit_to_few(model, data, **options):
        step = max(1, len(data.train) // 250)
        few = replace(data, train=data.train[::step], test=data.test[::step])
        return fit(model, few, **options)

    monkeypatch.setattr(vitcli, "fit", fit_to_few)
    monkeypatch.setattr(vitcli, "ablate", partial(vitcli.ablate, data="imagefolder:pictures"))


def test_the_python_of_readme_runs(here, small_trainings, capsys):
    (code,) = blocks(README, "python")
    exec(compile(code, "README.md", "exec"), {"__name__": "__main__"})  # noqa: S102
    assert "'test_accuracy': " in capsys.readouterr().out


@pytest.mark.plugin(*EVERY)
def test_the_python_page_runs_as_one_script(trained, small_trainings, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=list))
    names: dict[str, Any] = {"__name__": "__main__"}
    part, *others = sorted(blocks(PYTHON, "python"), key=lambda text: "# sigmoid.py\n" not in text)
    Path("sigmoid.py").write_text(part)
    monkeypatch.syspath_prepend(".")
    code = "".join(others)
    Path("page.py").write_text(code)
    exec(compile(code, "page.py", "exec"), names)  # noqa: S102
    shapes = dict(SHAPE.findall(code))
    assert shapes.keys() == {"images", "logits", "probabilities", "weights", "cls_to_patches"}
    for name, shape in shapes.items():
        if name != "logits":  # a later line takes this name for an array
            assert str(tuple(names[name].shape)) == f"({shape})", name
    accuracy = vitcli.load_run("quickstart").result["test_accuracy"]
    assert (names["logits"].argmax(1) == names["labels"]).mean() == accuracy


@pytest.mark.plugin(*EVERY)
def test_generated_tables_are_current(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / ".ci"))
    monkeypatch.chdir(ROOT)
    docs = importlib.import_module("docs")
    monkeypatch.setattr(docs, "printed", cache(lambda *words: json.loads(printed(*words))))
    monkeypatch.setattr(sys, "argv", ["docs.py", "--check"])
    docs.main()


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", BLOCK.sub("", page.read_text()), re.MULTILINE)
    slugs = [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in headings]
    seen: Counter[str] = Counter()
    for i, slug in enumerate(slugs):
        slugs[i] = f"{slug}-{seen[slug]}" if seen[slug] else slug
        seen[slug] += 1
    return set(slugs)


@pytest.mark.parametrize("page", LINKING, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_anchors_resolve(page):
    for target in LINK.findall(BLOCK.sub("", page.read_text())):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), target
        assert found.is_relative_to(ROOT), target
        assert found == COURSE or not anchor or anchor in anchors(found), target


def test_every_page_stands_in_the_navigation():
    nav = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]
    shown = re.findall(r"'([^']+\.md)'", str(nav))
    pages = [*PAGES, ROOT / "AGENTS.md", ROOT / "CHANGELOG.md"]
    assert sorted(shown) == sorted(str(page.relative_to(ROOT)) for page in pages)


@pytest.mark.parametrize("page", ["docs/results/judged.md", "tests/faults/README.md"])
def test_the_tests_that_a_page_names_exist(page):
    text = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    named = re.findall(r"`(test_\w+)`", (ROOT / page).read_text())
    assert len(named) > 10
    assert [name for name in named if f"def {name}(" not in text] == []


def test_the_citation_has_the_version_of_the_package():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert citation["version"] == project["version"] == vitcli.__version__
    assert ("date-released" in citation) != ("dev" in vitcli.__version__)
    assert citation["license"] == project["license"]
    released = project["version"].removesuffix(".dev0")
    assert f"## [{released}]" in (ROOT / "CHANGELOG.md").read_text()


def test_no_text_installs_vitcli_from_a_registry():
    """The name is not registered, so a stranger could register it. --no-index asks no registry."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    beside = [ROOT / "SECURITY.md", ROOT / ".devcontainer" / "devcontainer.json"]
    sources = [*PAGES, *beside, *(ROOT / "vitcli").rglob("*.py")]
    asked = [
        name.strip("'\"")
        for path in sources
        for options in re.findall(r"(?:pipx?|uv tool) install ([^`\n;|&]+)", path.read_text())
        if "--no-index" not in options
        for name in options.split()
    ]
    assert not [name for name in asked if re.match(r"vitcli\b(?!.*\.whl)", name)]
    own = {extra for name in asked for extra in re.findall(r"^\.\[(\w+)\]", name)}
    assert {"search", "timm"} <= own <= extras["optional-dependencies"].keys()
