"""Own code that is damaged, hostile or not named: nothing runs by itself, and nothing is lost."""

import inspect
import json
import re
import shutil
from contextlib import nullcontext
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.cli import commands
from tests.own_code import EVERY, forget, vitcli
from tests.plugin_rows import has
from vitcli import parts
from vitcli.core.spec import SCHEDULES
from vitcli.runner.errors import OwnCodeError
from vitcli.runner.evaluate.weights import load_model
from vitcli.runner.experiment import own_code, torch_state
from vitcli.runner.experiment.config import load_experiment
from vitcli.runner.experiment.yaml_text import Document, dump
from vitcli.runner.files import sha256
from vitcli.runner.run.folder import RunDir
from vitcli.runner.run.listing import list_records
from vitcli.runner.study.from_python import plain

__all__ = ["forget"]
CANARY = "from pathlib import Path\nPath('canary').write_text('ran')\n"
EDITED = EVERY.replace("return self.share", "return 2 * self.share")
READING = (
    *("runs ls", "runs show own", *["runs page"] * has("page")),
    *["runs export own --format csv -o table"] * has("trackers"),
    *("runs diff own cifar10-pocket", "experiments ls", "runs verify own"),
)
RUNNING = (
    *("eval own", "visualize own", *["export own --format safetensors"] * has("exports")),
    "predict own photo.jpg",
    *("attn-map own photo.jpg", "train --resume own"),
)


def write_package(name: str, text: str) -> None:
    """Write a package folder whose parts are in a module that it imports."""
    Path(name, "inside").mkdir(parents=True)
    Path(name, "__init__.py").write_text(f"{CANARY}from .inside import parts\n")
    Path(name, "inside/__init__.py").touch()
    Path(name, "inside/parts.py").write_text(f"from {name} import inside\n{text}")


@pytest.fixture
def downloaded(here, tiny, workshop) -> Path:
    if not (workshop / "own").exists():
        write_package("far", EVERY)
        words = "--code far/ -s model.attention=Uniform -s model.attention.share=0.5 --epochs 1"
        vitcli(f"train {workshop}/tiny.yaml {words} -o {workshop}/own")
        shutil.rmtree("far")
        Path("canary").unlink()
    shutil.copytree(workshop / "own", "runs/own")
    commands.save_picture("photo.jpg", (40, 30))
    return Path("runs/own")


def test_a_downloaded_run_is_read_and_runs_nothing(downloaded):
    shown = {command: vitcli(command) for command in READING}
    assert not Path("canary").exists()
    assert re.search(r"own .* finished .*attention\.share=0\.5", shown["runs ls"])
    for command in ("runs show own", "runs diff own cifar10-pocket"):
        assert re.search(r"^model\.attention\.share +50\.0 %", shown[command], re.M)
    vitcli("runs rm own --yes")
    assert not downloaded.exists(), "its code was removed, too"


def test_a_downloaded_run_runs_its_code_only_if_it_is_trusted(downloaded):
    for command in RUNNING:
        talk = vitcli(command, 2)
        assert "needed: far/; type --trust-code to run the copy in runs/own/code" in talk, command
        assert not Path("canary").exists(), command
    for copy in downloaded.glob("code/**/*.py"):  # as git does on Windows
        copy.write_bytes(copy.read_bytes().replace(b"\n", b"\r\n"))
    vitcli("runs verify own")
    vitcli("train --resume own --trust-code")
    vitcli("predict own photo.jpg --code runs/own/code/far")
    assert Path("canary").exists()
    vitcli("runs rm own --yes")
    assert not downloaded.exists()


def test_a_training_that_is_killed_while_its_code_is_copied_continues(tiny, monkeypatch):
    def die(path: Path, content: bytes) -> None:
        path.write_bytes(content)
        raise KeyboardInterrupt

    write_package("far", EVERY)
    words = f"train {tiny} --code far/ -s model.attention=Uniform --epochs 1 --name own"
    with monkeypatch.context() as patch:
        patch.setattr(own_code, "commit", die)
        vitcli(words, 130)
    assert len([*Path("runs/own/code").rglob("*.py")]) == 1
    vitcli("train --resume own --code far/")
    vitcli("runs verify own")


def test_the_pre_training_of_a_run_may_have_own_parts(tiny):
    Path("own.py").write_text(EVERY)
    few = "train: {epochs: 1, limit_batches: 1, batch_size: 16}"
    Path("e.yaml").write_text(
        f"code: [own.py]\nbase: {tiny}\n{few}\n"
        f"pretrain: {{task: {{name: classify}}, augment: {{policy: {{name: dim}}}}, {few}}}\n"
    )
    vitcli("train ./e.yaml --name own")
    Path("own.py").unlink()
    rows = json.loads(vitcli("runs ls --json"))["runs"]
    assert [row["state"] for row in rows] == ["finished"] * 2
    vitcli("runs verify own")
    assert "pretrain.augment.policy" in vitcli("runs show own")


def test_code_is_trusted_or_named_again(downloaded, tiny):
    for hidden in ("._parts.py", ".ipynb_checkpoints/parts-checkpoint.py"):  # of macOS, of Jupyter
        (file := downloaded / "code/far/inside" / hidden).parent.mkdir(exist_ok=True)
        file.write_bytes(b"\0\5\26\7")
    vitcli("runs verify own")
    vitcli("eval own --code runs/own/code/far")
    write_package("far", EDITED)
    assert "differs from the far/ of the" in vitcli("eval own --code far/", 2)
    copy = downloaded / "code/far/inside/parts.py"
    copy.write_text(EDITED)
    assert "far: it was changed after" in vitcli("eval own --trust-code", 2)
    vitcli("runs verify own", 4)
    Path("far/inside/parts.py").write_text(f"from far import inside\n{EVERY}")
    for words in ("--resume own", "runs/own/config.yaml -o runs/own --rerun"):
        assert "move it elsewhere" in vitcli(f"train {words} --code far/", 4)
    vitcli(f"train {tiny} --code runs/own/code/far -o runs/own --rerun --dry-run")
    vitcli("runs rm own --yes")
    assert copy.exists(), "changed code is not vitcli's"


@pytest.mark.parametrize(
    ("named", "there", "made", "refused", "where"),
    [
        ("s/code/own.py", "", None, True, ""),  # the named file itself
        ("own.py", "# older", None, True, ""),
        ("own.py", "# edited", "", True, "s/plan.json"),
        ("own.py", "# of the last plan", "# of the last plan", False, "s/plan.json"),
        ("own.py", "# of an older one", "# of an older one", False, "s/b/seed0/config.yaml"),
        ("own.py", "", None, False, ""),  # after a kill before the plan
    ],
)
def test_a_study_replaces_only_unedited_copies(tiny, named, there, made, refused, where):
    for folder in (Path(), Path("s/code")):
        folder.mkdir(exist_ok=True, parents=True)
        (folder / "own.py").write_text(EVERY + there * (folder != Path()))
    few = "{epochs: 1, limit_batches: 1, batch_size: 16}"
    variants = "seeds: [0]\nvariants: {a: {}, b: {model.ffn: Gate}}"
    Path("s.yaml").write_text(f"code: [{named}]\nbase: {tiny}\ntrain: {few}\n{variants}\n")
    if made is not None:
        config = {"code": {"own.py": sha256((EVERY + made).encode())}}
        plan = {"study": "s", "trials": {"b": {"config": config}}}
        Path(where).parent.mkdir(exist_ok=True, parents=True)
        Path(where).write_text(json.dumps(plan if where == "s/plan.json" else config))
    said = vitcli("ablate s.yaml -o s --dry-run", 4 * refused)
    assert ("s/code/own.py is no copy that vitcli made" in said) == refused


def test_a_run_without_the_copy_of_its_code_is_whole_and_asks_for_the_path(downloaded):
    shutil.rmtree(downloaded / "code")
    assert "neither a Python file" in vitcli("eval own --trust-code", 2)
    assert "--trust-code" not in vitcli("eval own", 2), "there is no copy to trust"
    vitcli("runs verify own")


@pytest.mark.parametrize(
    ("code", "file", "content", "problem"),
    [
        ({"far.py": EVERY, "gone.py": ""}, "far.py", EVERY, ""),
        ({"far.py": EVERY}, "far.py", EDITED, "differs from the far.py of the run"),
        ({"far.py": EVERY}, "other.py", EVERY, "needed: far.py"),
        ({}, "other.py", EVERY, "needed: other.py"),
        ({"python:Uniform": ""}, "other.py", EVERY, "Uniform: was defined in Python alone"),
    ],
)
def test_a_model_is_built_from_the_code_of_its_run_alone(downloaded, code, file, content, problem):
    config = downloaded / "config.yaml"
    hashes = [f"  {name}: {sha256(text.encode())}" for name, text in code.items()] or ["  {}"]
    config.write_text(re.sub(r"^  far/: .*$", "\n".join(hashes), config.read_text(), flags=re.M))
    meta = downloaded / "meta.json"
    meta.write_text(json.dumps(json.loads(meta.read_text()) | {"config_sha256": None}))
    Path(file).write_text(content)
    own_code.load([Path(file)])
    with pytest.raises(OwnCodeError, match=problem) if problem else nullcontext():
        assert load_model(downloaded).spec.attention == "Uniform"


@pytest.mark.parametrize(
    ("marks", "file"),
    [
        (("config.yaml", "status.json"), "e.yaml"),
        (("config.yaml", "code"), "sub/e.yaml"),
        (("meta.json",), "config.yaml"),
        (("plan.json",), "sub/e.yaml"),
    ],
)
def test_no_file_in_the_folder_of_a_run_or_study_names_code(tiny, marks, file):
    Path("folder/sub").mkdir(parents=True)
    for mark in marks:
        Path("folder", mark).touch()
    Path("own.py").write_text(CANARY)
    Path("folder", file).write_text(f"code: [{Path('own.py').resolve()}]\nbase: {tiny}\n")
    Path("mine.yaml").write_text(f"base: folder/{file}\n")
    for typed in (f"folder/{file}", "mine.yaml"):
        refused = vitcli(f"train {typed} --dry-run", 2)
        assert "in a run folder cannot name code" in refused
    assert not Path("canary").exists()
    vitcli(f"train {typed} --dry-run {refused.partition('; type ')[2]}")


def test_a_stored_run_that_names_a_file_runs_nothing(downloaded, tiny):
    Path("evil.py").write_text(CANARY)
    Path("e.yaml").write_text(f"code: [evil.py]\nbase: {tiny}\n")
    config = downloaded / "config.yaml"
    text, evil = config.read_text(), Path("evil.py").resolve()
    code = re.search(r"^code:\n  far/: \w+$", text, re.M)
    assert code
    base = f"base: {Path('e.yaml').resolve()}\n"
    for wrong, ended in (
        (base + text.replace(code[0], "code: {}"), 4),
        (text.replace(code[0], f"code: [{evil}]"), 2),
        (text.replace(code[0], f"code:\n  {evil}: {sha256(CANARY.encode())}"), 2),
        (text.replace(code[0], f"code:\n  ../../../evil.py: {sha256(CANARY.encode())}"), 2),
    ):
        config.write_text(wrong)
        vitcli("train --resume own --trust-code", ended)
    config.write_text(text)
    meta = json.loads((downloaded / "meta.json").read_text())
    (downloaded / "meta.json").write_text(json.dumps(meta | {"experiment": "e.yaml"}))
    vitcli("runs ls")
    with pytest.raises(OwnCodeError, match="that nobody has typed cannot name code"):
        load_experiment("e.yaml")  # as completion does
    assert not Path("canary").exists()


PART = "from vitcli.parts import schedule\n@schedule"
OPTION = f"""import enum
from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional
Act = enum.Enum("Act", {{{{"relu": "r", "gelu": "g"}}}})
{PART}
def s(p, *, {{}}): return 1
"""
"""A schedule with an option."""
PLAIN = "option is made of numbers, text, true, false, None, lists, tuples and dictionaries"
CHANGED = ["o: Any = (1, 2)", "o=(1, (2, 3))", "o: Callable = len", "o=Act", "o: memoryview = None"]
"""Options whose default does not come back from config.yaml as it was."""
METRIC = "from vitcli.parts import metric\n@metric\ndef %s(logits, labels): ...\n"
SILENT = "class E(Exception):\n    __str__ = None\n"
INSTALLED = cache(packages_distributions)
TWICE = f"{PART}(name='s')\ndef r(p): ...\n@schedule(name='s')\n"


@pytest.mark.parametrize(
    ("name", "body", "problem"),
    [
        ("ends.py", "import sys\nsys.exit(0)\n", "ends.py:2: in <module>: SystemExit"),
        ("default.py", f"{PART}\ndef s(p, n: int = 'three'): ...\n", "option 'n': default"),
        *(("part.py", OPTION.format(row), rf"part.py:\d+: .*: s: .*{PLAIN}") for row in CHANGED),
        ("sets.py", OPTION.format("o: dict[str, set[int]] = {}"), "'o' is a set.* make it a tuple"),
        ("random.py", "", "random.py has the name of another module"),
        ("syntax.py", "def x(:\n", "syntax.py:1: SyntaxError"),
        ("beside.py", "import helper\n", r"beside.py:1: imports helper.*list it too"),
        ("far.py", "import elsewhere\n", r"far.py:1: imports elsewhere.*list it too"),
        ("space.py", "from spaced.util import x\n", r"space.py:1: imports spaced.*list it too"),
        ("shadow.py", f"{PART}(name='cosine')\ndef s(p): ...\n", "a part 'cosine' already"),
        ("twice.py", f"{TWICE}def t(p): ...\n", "twice.py:4: .*twice.py has a part 's' already"),
        *(
            (f"{name}.py", METRIC % name, f"{name}.py:2: .*rename the metric")
            for name in ("test_accuracy", "val_loss", "best_val_macro_f1")
        ),
        ("silent.py", f"{SILENT}raise E\n", "silent.py:3: in <module>: silent.E"),
        ("chain.py", "x = a" + ".b" * 20_000, "chain.py:1: RecursionError"),
        ("latin.py", "# 1\n# 2\nx = '\udce9'\n", "latin.py:3: SyntaxError"),
        ("latin1.py", "# caf\udce9\n", "latin1.py:1: SyntaxError"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(here, monkeypatch, name, body, problem):
    """Also one that imports a file of the person's from anywhere: an edit would not be seen."""
    monkeypatch.setattr(own_code, "packages_distributions", INSTALLED)
    monkeypatch.syspath_prepend("lib")
    for file in ("helper.py", "lib/elsewhere.py", "lib/spaced/util.py"):
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        Path(file).write_text("x = 1\n")
    Path(name).write_text(body, errors="surrogateescape")
    (line,) = vitcli(f"experiments check --code {name}", 2).splitlines()
    assert re.search(problem, line)
    assert not own_code.state.codes


def test_code_of_an_installed_package_may_be_imported_from_any_folder(here, monkeypatch):
    """As after ``pip install -e``."""
    monkeypatch.syspath_prepend("lib")
    for file, text in (("lab.py", "x = 1"), ("lab-1.dist-info/top_level.txt", "lab")):
        Path("lib", file).parent.mkdir(parents=True, exist_ok=True)
        Path("lib", file).write_text(f"{text}\n")
    Path("lib/lab-1.dist-info/METADATA").write_text("Name: lab\nVersion: 1\n")
    Path("uses.py").write_text("from lab import x\n")
    assert own_code.load([Path("uses.py")]).keys() == {"uses.py"}


@pytest.mark.parametrize(
    ("decorator", "base", "body", "names"),
    [
        ("model", "nn.Module", "def __init__(s, *, %s: int = 1): ...", "family copy has_blocks"),
        ("attention", "nn.Module", "def __init__(s, shape, *, %s: int = 1): ...", "name json"),
        ("objective", "Classify", "%s: int = 1", "name row losses has_teacher"),
    ],
)
def test_an_option_cannot_have_a_name_that_vitcli_uses(here, decorator, base, body, names):
    start = (
        f"from torch import nn\nfrom vitcli.parts import *\n@{decorator}\nclass A({base}):\n    "
    )
    for name in names.split():
        Path("own.py").write_text(start + body % name)
        told = vitcli("experiments schema --code own.py", 2)
        assert f"option {name!r}: vitcli itself" in told


@pytest.mark.parametrize(
    ("line", "changed"),
    [
        ("torch.set_default_dtype(torch.float64)", "torch.set_default_dtype"),
        ("torch.set_grad_enabled(False)", "torch.set_grad_enabled"),
        ("torch.set_default_device('meta')", "torch.set_default_device"),
        ("torch.backends.cudnn.benchmark = True", "torch.backends.cudnn"),
        ("torch.nn.functional.cross_entropy = max", "torch.nn.functional.cross_entropy"),
        ("torch.nn.Linear.forward = lambda self, x: x", "Linear.forward"),
        ("torch.Tensor.backward = lambda self: None", "Tensor.backward"),
        ("torch.Tensor.argmax = max", "Tensor.argmax"),
        ("torch.nn.Dropout = torch.nn.Identity", "torch.nn.Dropout"),
        ("torch.nn.GELU.forward = lambda self, x: x", "GELU.forward"),
        ("torch.nn.BatchNorm2d.forward = lambda self, x: x", "BatchNorm2d.forward"),
        ("torch.optim.Adam.step = max", "Adam.step"),
        ("torch.optim.AdamW.step = max", "AdamW.step"),
        ("torch.autograd.set_detect_anomaly(True)", "torch.autograd.set_detect_anomaly"),
    ],
)
def test_own_code_does_not_change_torch_for_the_whole_process(tiny, line, changed):
    def state() -> tuple[object, ...]:
        settings = {name: value for name, (value, _) in torch_state._settings().items()}
        return settings, torch_state._functions()

    before = state()
    words = f"train {tiny} --code own.py -s model.attention=Uniform --dry-run"
    texts = f"{EVERY}{line}\n", EVERY.replace("self.share = share", line)
    for text in texts[: 1 if "device" in line else 2]:  # a model is first built on another device
        Path("own.py").write_text(text)
        assert f"own.py: changes torch for the whole process ({changed}" in vitcli(words, 2)
        assert state() == before, "the change was undone"


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ("@metric\ndef m(*_):\n    LINE\n    return 1.0\n", ""),
        ("@schedule\ndef m(_):\n    LINE\n    return 1.0\n", "-s optim.schedule=m"),
        (
            "@optimizer\nclass M(torch.optim.SGD):\n    def step(self, closure=None):\n"
            "        LINE\n        return super().step()\n",
            "-s optim.name=M",
        ),
        (
            "@data_set\ndef m(_):\n    LINE\n    y = torch.arange(20) % 2\n    x = 100 * y.byte()\n"
            "    x = x[:, None, None].repeat(1, 8, 8)\n"
            "    return {'images': x.numpy(), 'labels': y.numpy()}\n",
            "--data m:1",
        ),
    ],
)
def test_no_part_changes_torch_in_a_training(tiny, part, words):
    start = "import torch\nimport torch.nn.functional as F\nfrom vitcli.parts import *\n"
    Path("own.py").write_text(start + part.replace("LINE", "F.cross_entropy = min"))
    before = torch.nn.functional.cross_entropy
    said = vitcli(f"train {tiny} --code own.py {words} --limit-batches 2 --name own", 2)
    assert "own.py: changes torch for the whole process" in said
    assert torch.nn.functional.cross_entropy is before
    kept = [path.parent.name for path in Path("runs").glob("own/checkpoints/*/manifest.json")]
    assert kept == ["2"] * part.startswith("@schedule"), "the warm-up before it lasts two steps"
    assert all(record.state == "interrupted" for record in list_records(Path("runs")))


@pytest.mark.parametrize("value", ["'x' * 2**20", f"{'[' * 20}{']' * 20}"])
def test_options_that_no_run_could_be_read_with_are_refused(tiny, value):
    net = "from vitcli.parts import model\n@model\nclass Net(nn.Module):\n    def __init__(self, *,"
    body = "super().__init__()\n        self.head = nn.Linear(192, num_classes)"
    forward = "def forward(self, x):\n        return self.head(x.flatten(1))"
    given = f"img_size, in_chans, num_classes, prior={value}):\n        {body}\n    {forward}\n"
    Path("own.py").write_text(f"from torch import nn\n{net} {given}")
    words = "--code own.py -s model.family=Net -s optim.name=adamw --name own"
    said = vitcli(f"train {tiny} {words}", 2)
    assert "runs/own/config.yaml, as it would be written" in said
    assert not Path("runs/own").exists()


def test_own_code_does_not_change_the_folder_in_which_runs_are_written(here, tiny):
    Path("own.py").write_text(f"import os\nos.chdir('/')\n{EVERY}")
    words = f"train {tiny} --code own.py -s model.ffn=Gate --dry-run"
    assert "own.py: changes the working folder (os.chdir)" in vitcli(words, 2)
    assert Path.cwd() == here


def test_what_own_code_prints_is_not_among_the_results(tiny):
    shout = "print('loud')\n        return self.share"
    Path("own.py").write_text("print('first')\n" + EVERY.replace("return self.share", shout))
    words = f"train {tiny} --stop-after 1 --json --code own.py -s model.attention=Uniform"
    code, out, talk = commands.vitcli(*words.split())
    assert (code, "first" in talk, "loud" in talk) == (0, True, True)
    assert isinstance(json.loads(out), dict)


def test_files_that_are_listed_import_each_other(tiny):
    Path("helper.py").write_text("SHARE = 0.5\n")
    Path("own.py").write_text("from helper import SHARE\n" + EVERY)
    words = "--code own.py --code helper.py -s model.attention=Uniform --stop-after 1 -o run"
    vitcli(f"train {tiny} {words}")
    assert RunDir(Path("run")).spec().code.keys() == {"own.py", "helper.py"}


def load_half() -> None:
    @parts.schedule
    def half(progress):
        return 0.5


def test_a_package_adds_parts_and_its_version_belongs_to_the_configuration(tiny, monkeypatch):
    package = SimpleNamespace(name="half", dist=SimpleNamespace(name="half-rate"), load=load_half)
    found = {"vitcli.parts": [package]}
    monkeypatch.setattr(own_code, "entry_points", lambda group: found[group])
    monkeypatch.setattr(own_code, "version", {"half-rate": "1.2"}.__getitem__)
    vitcli(f"train {tiny} -s optim.schedule=half --stop-after 1 -o run")
    assert RunDir(Path("run")).spec().code == {"half-rate": "1.2"}
    found["vitcli.parts"] = []
    assert "half" in vitcli("runs show run")
    assert "install the package half-rate" in vitcli("train --resume run", 2)
    vitcli(f"train {tiny} -s optim.schedule=half", 2)


@pytest.mark.parametrize(
    ("option", "typed"),
    [
        ("o=(2, 3)", [4, 5]),
        ("o: Optional[tuple[int, int]] = (2, 3)", None),
        ("o: int | tuple[int, int] = (2, 3)", 4),
        ("o: tuple[tuple[int, ...], ...] = ((1, 2), (3,))", [[1], []]),
        ("o: dict[str, tuple[int, int]] = {'a': (1, 2)}", {"b": [3, 4]}),
        ("o: dict[int, str] = {1: 'a'}", {"2": "b"}),
        ("o: Act = Act.relu", "g"),
        ("o: Path = Path('a')", "b/c"),
        ("o: bool | int = True", 1),
        ("o: Optional[Callable] = None", None),
        ("o=None", 4),
        ("o=None", [1, "a"]),
    ],
)
def test_an_option_comes_back_from_config_yaml_as_it_was(here, option, typed):
    Path("own.py").write_text(OPTION.format(option))
    own_code.load([Path("own.py")])
    options: Any = SCHEDULES["s"].own
    for given in ({}, {"o": typed}):
        written = options(**given)
        text = dump({"value": written.model_dump(mode="json")})
        read = options(**Document(text, "config.yaml").data["value"])
        assert (read, repr(read)) == (written, repr(written))
        assert options(**written.model_dump()) == options(**plain(written)) == written
    default = inspect.signature(SCHEDULES["s"].build).parameters["o"].default
    assert (options().o, type(options().o)) == (default, type(options(o=default).o))
