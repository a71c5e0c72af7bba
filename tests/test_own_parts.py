"""Parts from a user's own file: the tutorial as it stands, and what each part must satisfy."""

import hashlib
import json
import math
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tests import torchrun
from tests.cli import commands
from tests.conftest import draw_pictures
from tests.own_code import EVERY, as_new_process, forget, vitcli
from tests.plugin_rows import has
from tests.runner.train.conftest import stops_after
from tests.same_run import assert_same_run
from vitcli import api, parts
from vitcli.core.metrics.classification import measure_logits
from vitcli.core.models.image_model import build_model
from vitcli.core.nn.norm import FrozenBuffers
from vitcli.core.spec import FAMILIES, ModelSpec, model_spec
from vitcli.core.spec.own import PYTHON
from vitcli.core.train.schedule import lr_factor
from vitcli.runner.evaluate.weights import load_model
from vitcli.runner.experiment import own_code
from vitcli.runner.experiment.config import config_hash, load_experiment
from vitcli.runner.experiment.diff import differences
from vitcli.runner.run.checkpoint import latest_checkpoint
from vitcli.runner.run.folder import RunDir
from vitcli.runner.run.record import read_record
from vitcli.runner.train import check_code, contract, flops
from vitcli.runner.train.prepare import Request
from vitcli.runner.train.train import train

__all__ = ["forget"]
DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "tutorials/own-part.md"
SIZES: dict[str, Any] = {"img_size": (8, 8), "in_chans": 3, "num_classes": 2}
SIZES |= {"embed_dim": 16, "num_heads": 2}
RESULTS = {
    "Short": ("v[:, :, :1]", r"Short returned the shape \(16, 2, 1, 8\), needed \(16, 2, 64, 8\)"),
    "NotANumber": ("v * float('nan')", "NotANumber returned NaN or infinity"),
    "Fails": ("q @ k", "in forward: RuntimeError"),
    "Elsewhere": ("v.to('meta')", "Elsewhere returned a tensor on meta, not cpu"),
    "Draws": ("v * random.random()", "the same batch gave other numbers"),
    "Drops": ("v * (self.training < 1 or random.random())", "draws from Python's random"),
    "Nothing": ("None", "Nothing returned NoneType, not a tensor"),
    "Double": ("v.double()", r"Double returned torch\.float64, needed torch\.float32"),
    "Ends": ("exit(0)", "in forward: SystemExit: 0"),
    "Counts": ("v * (1 + 0.1 * self.count())", "a resumed training ends with other numbers"),
}
"""Bad attention -> what it returns, and its problem."""
WITH_WEIGHTS = {"Weighs": r"Weighs\.weights: rows must sum to 1", "Reads": "Reads.weights returned"}
BATCHWISE = "the output for an image depends on the other images"
BAD = """
import random
from torch import nn
from vitcli.parts import attention, norm, pool

class Rule(nn.Module):
    calls = 0
    def __init__(self, shape):
        super().__init__()
    def count(self):
        Rule.calls += self.training
        return Rule.calls

@norm
class Batchwise(Rule):
    def forward(self, x):
        return x - x.mean(0, keepdim=True)

@attention
class Weighs(Rule):
    def weights(self, q, k):
        return (q @ k.mT).sigmoid()
    def forward(self, q, k, v):
        return self.weights(q, k) @ v

@pool
class Reads(Rule):
    def weights(self, tokens):
        return tokens.softmax(1)
    def forward(self, tokens):
        return (self.weights(tokens) * tokens).sum(1)
""" + "".join(
    f"\n@attention\nclass {name}(Rule):\n    def forward(self, q, k, v):\n        return {value}\n"
    for name, (value, _) in RESULTS.items()
)
TAUGHT = """
from vitcli.parts import objective

@objective
def taught(logits, targets, *, teacher: str = ""):
    return nn.functional.cross_entropy(logits, targets)
"""


@pytest.mark.parametrize(
    "changed",
    [
        "images * torch.rand(())",
        "images * np.random.rand()",
        "images * random.random()",
        "images * (time.perf_counter() % 1)",
        "images[:, :, : next(HEIGHTS)]",
    ],
)
def test_an_augmentation_that_draws_elsewhere_is_refused(tiny, changed):
    Path("pixels.py").write_text(
        "import itertools\nimport random\nimport time\nimport numpy as np\nimport torch\n"
        "from vitcli.parts import augmentation\n\nHEIGHTS = itertools.cycle([8, 4])\n\n"
        f"@augmentation(draws=1)\ndef dimmed(images, draws):\n    return {changed}\n"
    )
    words = "train tiny.yaml --code pixels.py -s data.augment.policy=dimmed"
    assert "takes all randomness from its draws" in vitcli(words, 2)


@pytest.fixture
def every(here) -> None:
    Path("every.py").write_text(EVERY)
    own_code.load([Path("every.py")])


@pytest.fixture
def small_check(here, monkeypatch) -> None:
    few = draw_pictures(here / "few", 16, 3)
    monkeypatch.setitem(check_code.SMALL, "data", {"name": f"imagefolder:{few}", "resize": 32})


@pytest.fixture
def tutorial(tiny, monkeypatch) -> list[str]:
    tiny.write_text(tiny.read_text().replace(", mixup: 0.5", ""))
    text = PAGE.read_text().replace("base: quickstart", f"base: {tiny}")
    text = text.replace("seeds: [0, 1, 2]", "seeds: [0]\ntrain: {epochs: 1}")
    for name, body in re.findall(r"^```python\n# (\S+)\n(.*?)^```$", text, re.M | re.S):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(body)
    (study,) = re.findall(r"^```yaml\n(.*?)^```$", text, re.M | re.S)
    Path("cosine-study.yaml").write_text(study)
    text = text.replace("experiments/results/ship.jpg", "photo.jpg")
    lines = "\n".join(re.findall(r"^```bash\n(.*?)^```$", text, re.M | re.S)).splitlines()
    return [line.removeprefix("vitcli ").replace("quickstart", str(tiny)) for line in lines if line]


def test_the_tutorial_runs_and_a_changed_part_makes_its_trials_stale(
    tutorial, tiny, without_workers, sketched
):
    commands.save_picture("photo.jpg", (40, 30))
    for command in tutorial:
        if not command.startswith(SLOW):
            vitcli(f"{command} --epochs 1" if command.startswith(f"train {tiny}") else command)
    assert json.loads(Path("runs/poly1/result.json").read_text())["test_accuracy"] >= 0
    results = json.loads(Path("runs/cosine-study/results.json").read_text())
    assert [len(row["trials"]) for row in results["rows"]] == [1, 1, 1, 1, 1]
    assert Path("runs/cosine-study/code/cosine.py").read_bytes() == Path("cosine.py").read_bytes()
    shown = vitcli("runs show cosine-study/cosine/seed0")
    (digest,) = RunDir(Path("runs/cosine-study/cosine/seed0")).config()["code"].values()
    assert re.search(rf"^code +cosine\.py {digest[:12]}$", shown, re.M)
    Path("cosine.py").write_text(Path("cosine.py").read_text().replace("10.0", "11.0"))
    shown = vitcli("ablate ./cosine-study.yaml --dry-run")
    states = dict(re.findall(r"^(\S+/seed0) +(\w+)", shown, re.M))
    assert states == {"cosine/seed0": "stale", "cosine-20/seed0": "stale"}, "of this file only"


@pytest.mark.ci
@pytest.mark.plugin("live", "page")
def test_the_first_tutorial_runs_from_its_first_command_to_its_last(here):
    """Its notebook has the same commands: ``python .ci/docs.py`` makes it of them."""
    commands.save_picture("ship.jpg", (40, 30))
    text = (DOCS / "tutorials/first-model.md").read_text().replace("experiments/results/", "")
    for language, block in re.findall(r"^```(bash|python)\n(.*?)^```$", text, re.M | re.S):
        if language == "python":
            Path(block.split()[1]).write_text(block)
        for command in re.findall(r"^vitcli (?!train cifar10)(.+)$", block, re.M):
            is_new = command.startswith("train") and "--resume" not in command
            vitcli(f"{command} --epochs 1 --limit-batches 2" if is_new else command)
    assert {"mynet.py", "ship-explorer.html"} <= {path.name for path in here.glob("*.*")}
    runs = {path.name for path in here.glob("runs/*")}
    assert {"no-positions", "shallow", "net", "wide"} <= runs


SLOW = ("experiments check", "bench", "export", "visualize")
SHORTER = {"bench": " --lengths 64 --rounds 1", "visualize": " --num-images 4"}


@pytest.mark.ci
@pytest.mark.plugin("bench", "exports")
def test_the_tutorial_checks_benches_exports_and_draws(tutorial, tiny, small_check):
    for command in tutorial:
        if command.startswith(SLOW):
            vitcli(command + SHORTER.get(command.split()[0], ""))
        elif command.startswith("train") and "--name cosine" in command:
            vitcli(f"{command} --epochs 1")


def test_every_kind_of_part_and_those_of_the_page_pass_the_check(small_check):
    blocks = re.findall(r"^```python\n(?!# )(.*?)^```$", PAGE.read_text(), re.M | re.S)
    for name, text in {"every.py": EVERY, "page.py": "\n".join(blocks)}.items():
        Path(name).write_text(text)
        reports = json.loads(vitcli(f"experiments check --code {name} --json"))["parts"]
        parts = re.findall(r"^@(?!data_set)\w+(?:\(.*\))?\n(?:class|def) (\w+)", text, re.M)
        assert {each["part"]: each["problem"] for each in reports} == dict.fromkeys(parts, "")
    vitcli("train --code page.py -s task.name=Confident --data squares:200 --epochs 1")
    vitcli("train --code page.py -s task.name=Confident -s task.wieght=1", 2)


def line_of(part: str) -> int:
    return BAD.partition(f"class {part}(")[0].count("\n") + 1


def test_a_bad_part_is_named_with_its_line(small_check):
    Path("bad.py").write_text(BAD)
    checked = commands.document("experiments", "check", "--code", "bad.py", code=6)
    found = {each["part"]: each["problem"] for each in checked["parts"]}
    wanted = {name: problem for name, (_, problem) in RESULTS.items()} | WITH_WEIGHTS
    wanted["Batchwise"] = BATCHWISE
    assert found.keys() == wanted.keys()
    for part, problem in wanted.items():
        place = re.match(r"bad\.py(?::(\d+))?: ", found[part])
        assert place, found[part]
        assert place[1] is None or line_of(part) < int(place[1]) <= line_of(part) + 2
        assert re.match(problem, found[part][place.end() :]), found[part]


def test_a_killed_training_resumes_to_the_same_bits_and_eval_measures_the_metric(tiny, every):
    change = {
        "model.attention": {"name": "Uniform", "share": 0.5},
        **{"model.pos_embed": "Rows", "model.ffn": "Gate", "model.norm": "Centre"},
        **{"optim.name": "Descent", "data.augment.policy": "dim"},
    }
    experiment = load_experiment(str(tiny), change)
    calm = train(experiment, Request(output=Path("calm"))).folder
    with stops_after(7):
        train(experiment, Request(output=Path("stopped")))
    vitcli("train --resume stopped --trust-code")
    assert_same_run(calm, RunDir(Path("stopped")))
    assert calm.config()["code"].keys() == {"every.py"}
    share = read_record(calm).result["test_first_class"]
    assert 0 < share < 1
    measured = json.loads(vitcli("eval calm --json --trust-code"))
    assert measured["first_class"] == pytest.approx(share)


@pytest.mark.ci
def test_each_rank_runs_the_code_beside_the_experiment_file(tiny):
    """A folder of the same name lies where the ranks start."""
    other = "from pathlib import Path\nPath('other').touch()\n"
    for folder, line in (("beside/own", ""), ("own", other)):
        Path(folder).mkdir(parents=True)
        Path(folder, "__init__.py").write_text(f"{line}from . import parts\n")
        Path(folder, "parts.py").write_text(EVERY)
    Path("beside/mine.yaml").write_text(
        f"code: [own/]\nbase: {tiny.resolve()}\nmodel: {{attention: Uniform}}\n"
    )
    torchrun.run("train", "beside/mine.yaml", "--epochs", "1", "-o", "run")
    assert read_record(RunDir(Path("run"))).status == "finished"
    assert Path("run/code/own/parts.py").exists()
    assert not Path("other").exists()


SIDE = """
from pathlib import Path
from vitcli.parts import metric
Path("ran").touch()
@metric
def zz(logits, labels):
    return 1.0
"""


@pytest.mark.ci
@pytest.mark.plugin("distil")
def test_workers_run_no_code_of_a_teacher_that_nobody_named(tiny):
    Path("side.py").write_text(SIDE)
    vitcli(f"train {tiny} --code side.py --epochs 1 -o teacher")
    Path("ran").unlink()
    Path("mine.yaml").write_text(
        f"base: {tiny.resolve()}\ntask: {{name: distil, teacher: teacher}}\n"
        "seeds: [0, 1]\nvariants: {a: {}}\n"
    )
    vitcli("ablate mine.yaml --epochs 1 -j 1")
    assert not Path("ran").exists()
    assert "test_zz" not in read_record(RunDir(Path("runs/mine/a/seed1"))).result


SET = """
from torch import nn
from vitcli.parts import ffn

@ffn
class Gate(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.gate, self.out = (nn.Linear(shape.embed_dim, shape.embed_dim) for _ in range(2))
        %s
    def forward(self, x):
        return self.out(x) * self.gate(x)
"""


@pytest.mark.parametrize(
    ("line", "is_kept"),
    [
        ("nn.init.zeros_(self.gate.weight)", (True, False)),
        ("nn.init.eye_(self.gate.weight)", (True, False)),
        ("nn.init.constant_(self.gate.bias, -4.0)", (False, True)),
        ("pass", (False, False)),
    ],
)
def test_initial_weights_that_an_own_part_sets_stay(here, line, is_kept):
    Path("own.py").write_text(SET % line)
    own_code.load([Path("own.py")])
    model: Any = build_model(model_spec(ffn="Gate", init="xavier_normal", **SIZES), 0)
    for block in model.blocks:
        layer = block.ffn.inner
        alone = sys.modules["own"].Gate(model.token_shape).gate
        assert (layer.gate.weight.equal(alone.weight), layer.gate.bias.equal(alone.bias)) == is_kept
        assert (layer.out.weight.std() > 0.1, not layer.out.bias.any()) == (True, True)


BOTH = """
from vitcli.core.nn.pool import ClsPool
from vitcli.parts import pool

@pool(has_cls_token=True)
class Both(ClsPool):
    def forward(self, tokens):
        return tokens.mean(1)
"""


def test_a_map_names_what_the_pooling_reads(here):
    """An own pooling with CLS may read patches, too."""
    Path("own.py").write_text(BOTH)
    own_code.load([Path("own.py")])
    readers = {"cls": "CLS", "seq": "the pooled patches", "Both": "the pooled tokens"}
    for name, reader in readers.items():
        model: Any = build_model(model_spec(pool=name, **SIZES), 0)
        assert model.reader == reader


def test_what_an_own_part_does_not_state_is_not_drawn(tiny, every):
    commands.save_picture("x.png", (8, 8))
    for part, problem in (("attention", "attention 'Uniform'"), ("pool", "pooling 'Largest'")):
        setting = f"-s model.{part}={problem.split(chr(39))[1]}"
        vitcli(f"train {tiny} --code every.py {setting} --epochs 0 -o {part}")
        words = f"attn-map {part} x.png -o map.json --trust-code"
        assert f"{problem} has no weights to show" in vitcli(f"{words} --method rollout", 2)
        vitcli(f"{words} --method gradcam")
    vitcli("attn-map pool x.png -o map.json --trust-code --method raw")


NET = """
import torch
import torch.nn.functional as F
from torch import nn
from vitcli.parts import model

SHARED, DRAW = nn.Linear(3, 3), __import__("numpy").random.rand

@model
class Net(nn.Module):
    def __init__(self, *, img_size, in_chans, num_classes, widths: dict[str, int] = {"head": 3}):
        super().__init__()
        self.body, self.steps, wide = nn.Linear(in_chans, 3), 0, widths["head"]
        self.head = nn.Linear(wide, num_classes)
        %s
        self.late = None
    def count(self):
        self.steps += self.training
        return 1 + self.steps
    def maps(self, x):
        return self.body(x.movedim(1, -1)).tanh().movedim(-1, 1)
    def means(self, x):
        return self.maps(x).mean((2, 3))
    def grown(self, x):
        self.late = self.late or nn.Linear(3, 3)
        return self.late(x)
    def forward(self, x):
        return %s
"""
POOLED = "self.head(self.means(x))"
ZERO = "nn.init.zeros_(self.head.weight); nn.init.zeros_(self.head.bias)"
"""So that the output alone would not show what is done after the head."""
TANH = "self.head = nn.Sequential(self.head, nn.Tanh())"
CONV = "nn.Conv2d(wide, num_classes, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()"
TIED = "table = nn.Embedding(num_classes, 3); self.head.weight = self.table.weight"


@pytest.mark.parametrize(
    ("line", "returned", "problem"),
    [
        (ZERO, f"30 * ({POOLED} / 30).tanh()", "must return what its head returns"),
        (ZERO, f"{POOLED} * (2 if self.training else 1)", "unchanged"),
        (TANH, f"({POOLED} + self.head(self.means(2 * x))) / 2", "unchanged"),
        (ZERO, f"{POOLED} + self.means(x)[:, :1] * (type(self.head) is nn.Linear)", "unchanged"),
        (ZERO, f"{POOLED}[:, :1]", "net.py: mat1"),
        (ZERO, "self.head(self.means(x)[:, :, None])", "net.py: mat1"),
        ("", f"{{'logits': {POOLED}}}", "Net must return logits as one tensor, returned dict"),
        ("self.rows = (row for row in 'ab')", POOLED, "cannot pickle 'generator' object"),
        (ZERO, "self.head(self.grown(self.means(x)))", "net.late.bias is built in"),
        ("self.weight = nn.Parameter(torch.ones(1, dtype=torch.cfloat))", POOLED, "is complex"),
        ("Net.get_extra_state = lambda self: {'t': 1}", POOLED, "_extra_state is a dict"),
        (
            "self.body.weight.data[0, 0] = float(__import__('numpy').random.rand())",
            POOLED,
            "net.py: net.body.weight has other initial values the second time",
        ),
        (
            ZERO,
            f"{POOLED} * (DRAW() if self.training else 1)",
            "draws from Python's .*numpy.random",
        ),
        ("torch.manual_seed(0)", POOLED, "calls torch.manual_seed"),
        (ZERO, f"(torch.manual_seed(0), {POOLED})[1]", "calls torch.manual_seed"),
        (ZERO, f"(torch.set_grad_enabled(False), {POOLED})[1]", "torch.set_grad_enabled"),
        ("self.body = SHARED", POOLED, r"net.py:\d+: in maps.*build all layers in __init__"),
        ("self.body = nn.utils.parametrizations.orthogonal(self.body)", POOLED, "__init__.*meta"),
    ],
)
def test_a_model_that_would_fail_later_is_refused_before_its_training(
    tiny, line, returned, problem
):
    Path("net.py").write_text(NET % (line, returned))
    words = "--code net.py -s model.family=Net -s optim.name=adamw -o run"
    talk = vitcli(f"train {tiny} {words}", 2)
    assert "net.py:" in talk
    assert re.search(problem, talk)
    assert not Path("run").exists()


@pytest.mark.parametrize(
    ("line", "returned"),
    [
        (f"self.head = nn.Sequential({CONV})", "self.head(self.maps(x))"),
        (f"self.{TIED}", "self.head(self.means(x) + self.table.weight.mean(0))"),
        ("self.norm = nn.BatchNorm2d(3)", "self.head(self.norm(self.maps(x)).mean((2, 3)))"),
        ("self.head = nn.Sequential(nn.Dropout(0.5), self.head)", f"{POOLED}.float().flatten(1)"),
    ],
)
def test_a_model_that_returns_what_its_head_returns_is_taken(here, line, returned):
    Path("net.py").write_text(NET % (line, returned))
    own_code.load([Path("net.py")])
    spec = model_spec(family="Net", img_size=(8, 8), in_chans=3, num_classes=2)
    model: Any = build_model(spec, 0).eval()
    with torch.no_grad():
        model.check_head(torch.randn(2, 3, 8, 8))


OUTSIDE = """
from collections import deque
from pathlib import Path
from random import Random
from vitcli.parts import optimizer

@optimizer
class Growing(torch.optim.SGD):
    def __init__(self, params, lr=0.1):
        super().__init__(params, lr=lr)
        self.taken, self.inner = 0, torch.optim.Adam(self.param_groups)
    def step(self, closure=None):
        %s
        return super().step(closure)
"""


STATE = """for p in self.param_groups[0]["params"]:
            step = self.state[p].setdefault("step", 0)
            assert type(step) is int
            self.state[p]["step"] = step + 1
            row = self.state[p].setdefault("row", p.detach().clone()).lerp_(p, 0.5)
            p.grad.mul_(1 / (1 + step)).add_(row)"""


UNREADABLE = """return super().step(closure)
    def __init__(self, params, lr=0.1):
        super().__init__(params, lr=lr)
        self.rows = (number for number in range(9))
    def other(self, closure=None):
        pass"""


@pytest.mark.parametrize(
    ("line", "factor", "step", "name"),
    [
        ("", "", "pass", ""),
        ("self.register_buffer('table', torch.ones(2), persistent=False)", "", "pass", ""),
        ("", " * self.count()", "pass", "Net.net.steps"),
        (
            "self.register_buffer('sums', torch.zeros(1), persistent=False)",
            " + self.sums.add_(self.training)",
            "pass",
            "Net.net.sums",
        ),
        (
            "self.drawn = torch.Generator().manual_seed(0)",
            " + torch.rand(1, generator=self.drawn) * self.training",
            "pass",
            "Net.net.drawn",
        ),
        ("self.kept = {'a', 'b'}, torch.float32, Path('x'), lambda x: x, self", "", "pass", ""),
        ("self.drawn = Random(0)", " + self.drawn.random() * self.training", "pass", "drawn"),
        ("self.state = Random(0)", " + self.state.random() * self.training", "pass", "state"),
        ("", "", UNREADABLE, "Growing.rows an object that cannot be read"),
        ("", "", "self.taken += 1", "Growing.taken"),
        ("", "", "self.past = deque([*getattr(self, 'past', ()), 1.0], 3)", "Growing.past"),
        ("", "", "self.inner.step()", "Growing.inner"),
        ("", "", "self.param_groups[0]['d'] = self.param_groups[0].get('d', 1) * 2", "group0.d"),
        ("", "", STATE, ""),
    ],
)
def test_a_training_that_lost_the_state_of_own_parts_is_not_called_exact(
    tiny, line, factor, step, name
):
    Path("net.py").write_text(NET % (line, f"self.head(self.means(x){factor})") + OUTSIDE % step)
    words = "-s model.family=Net -s optim.name=Growing -o run --epochs 2 --stop-after 1"
    vitcli(f"train {tiny} --code net.py {words}")
    vitcli("train --resume run --code net.py")
    record = read_record(RunDir(Path("run")))
    assert record.result["exact"] is not bool(name)
    assert name in str(record.inexact)


@pytest.mark.parametrize("identity", ["the hash of a file", PYTHON])
def test_operations_are_counted_once_but_again_for_parts_of_a_notebook(tiny, identity, monkeypatch):
    counts = list[int]()
    monkeypatch.setattr(flops, "_counted", {})
    monkeypatch.setattr(flops, "step_flops", lambda *_: counts.append(1) or 1)
    spec = load_experiment(str(tiny)).spec.replace(code={"part": identity})
    assert flops.training_flops(spec) == flops.training_flops(spec)
    assert len(counts) == 1 + (identity == PYTHON)


@pytest.mark.parametrize("counted", ["", " * self.count()", " * F.dropout(torch.ones(3))"])
def test_state_outside_the_weights_is_a_warning(tiny, counted):
    Path("net.py").write_text(NET % ("", f"self.head(self.means(x){counted})"))
    words = f"train {tiny} --code net.py -s model.family=Net -s train.ema_decay=null -o run"
    code, _, talk = commands.vitcli(*words.split())
    assert (code, "warning: net.py: the saved weights alone" in talk) == (0, bool(counted))


@pytest.mark.parametrize("value", [math.nan, -math.inf, 1e300])  # such as a perplexity
def test_an_own_metric_changes_neither_the_others_nor_the_predictions(here, value):
    logits, labels = torch.eye(3), torch.tensor([0, 1, 1])
    before = measure_logits(logits, labels)

    @parts.metric
    def coarse(logits, labels):
        logits[:], labels[:] = 0, 2
        return 0.5

    @parts.metric
    def undefined(logits, labels):
        return torch.tensor(value, dtype=torch.float64)

    assert measure_logits(logits, labels) == before | {"coarse": 0.5}
    assert (logits.equal(torch.eye(3)), labels.tolist()) == (True, [0, 1, 1])


ODD_METRICS = """
from vitcli.core.metric import METRICS
from vitcli.parts import Classify, metric, objective
@metric(unit="%")
def parameters(logits, labels):
    return 0.25
@metric(unit="%")
def test_hit(logits, labels):
    return 0.125
@metric(unit="%", label="gain")
def gain_seconds(logits, labels):
    return -1.5
@metric
def nothing(logits, labels):
    return None
@objective(headline=METRICS["parameters"])
class Mine(Classify):
    pass
"""


def test_an_own_metric_of_any_name_keeps_its_number_unit_and_label(tiny):
    Path("odd.py").write_text(ODD_METRICS)
    words = f"train {tiny} --code odd.py -s task.name=Mine --epochs 1 -o runs/run"
    _, _, talk = commands.vitcli(*words.split())
    assert "odd.py: metric nothing returned None" in talk
    assert re.search(r"test parameters 25\.0 %  train acc \d+\.\d %", talk)
    shown = vitcli("runs show run")
    assert re.search("finished at step", shown)
    numbers = {"parameters": "25.00", "test_hit": "12.50", "gain_seconds": "-150.00"}
    for name, text in numbers.items():
        assert re.search(rf"^test_{name} +{text} %$", shown, re.M), "without its code"
    shown = vitcli("eval run --trust-code")
    assert re.match(r"run +run\nparameters +25\.00 % of 24 test images\naccuracy ", shown)
    assert re.search(r"^test hit +12\.50 %\ngain +-150\.00 %$", shown, re.M)
    measured = json.loads(vitcli("eval run --json --trust-code"))
    count = read_record(RunDir(Path("runs/run"))).parameters
    assert (measured["parameters"], measured["test_parameters"]) == (count, 0.25)
    vitcli("runs ls --sort score")
    words = f"train {tiny} --code odd.py --epochs 1 -o runs/plain"
    vitcli(words)
    measured = json.loads(vitcli("eval plain --json --trust-code"))
    assert (measured["parameters"], measured["test_parameters"]) == (count, 0.25)
    as_new_process()
    _, out, _ = commands.vitcli("eval", "plain")
    assert "not measured: parameters, test_hit and gain_seconds" in " ".join(out.split())


METRICS = {
    "text": ("'abc'", r"own\.py:\d: metric text returned str"),
    "zero": ("1 / 0", r"own\.py:\d: in zero: ZeroDivisionError"),
    "late": (
        "(seen.append(logits.sum()), sum(seen) / len(seen))[1]",
        r"own\.py:\d+: metric late gave other numbers",
    ),
    "right": ("0.5", "$"),
}


def test_a_wrong_metric_is_named_with_its_file_and_the_others_are_not(small_check):
    text = "from vitcli.parts import metric\nseen = []\n"
    for name, (returned, _) in METRICS.items():
        text += f"@metric\ndef {name}(logits, labels):\n    return {returned}\n"
    Path("own.py").write_text(text)
    for each in commands.document("experiments", "check", "--code", "own.py", code=6)["parts"]:
        assert re.match(METRICS[each["part"]][1], each["problem"]), each


OUTPUTS = """
from vitcli.parts import Classify, objective
@objective
class Mine(Classify):
    def outputs(self, module, images):
        found = super().outputs(module, images)
        return found | {"logits": %s}
"""


@pytest.mark.parametrize(
    ("logits", "code"),
    [
        ('found["logits"] + found["logits"].new_tensor([2, 0])', 2),
        ('2 * found["logits"]', 2),
        ('found["logits"].log_softmax(-1)', 0),
    ],
)
def test_an_own_classification_measures_the_model_that_answers(tiny, logits, code):
    Path("own.py").write_text(OUTPUTS % logits)
    talk = vitcli(f"train {tiny} --code own.py -s task.name=Mine --dry-run", code)
    assert ("own.py: Mine.outputs returns other logits than the model" in talk) is bool(code)


LOSS = """
import torch
from torch.nn.functional import cross_entropy
from vitcli.parts import objective
@objective
def own(logits, targets):
    return cross_entropy(logits, targets%s
"""


@pytest.mark.parametrize(
    ("rest", "differs"),
    [
        (")", False),
        (", reduction='sum')", True),
        (", torch.arange(1.0, 1 + logits.shape[1]))", True),
        (") * torch.rand(())", False),
    ],
)
def test_an_own_loss_that_is_no_mean_over_images_is_told_where_a_batch_has_parts(
    tiny, rest, differs
):
    Path("own.py").write_text(LOSS % rest)
    words = "-s task.name=own -s data.augment.mixup=0 -s train.accumulate=2 --dry-run"
    code, _, talk = commands.vitcli(*f"train {tiny} --code own.py {words}".split())
    assert (code, "warning: own.py: the loss of a batch is" in talk) == (0, differs)


def test_an_own_loss_without_a_gradient_is_refused(tiny, small_check):
    Path("own.py").write_text(LOSS % ").detach()")
    told = "own.py: the loss has no gradient"
    assert told in vitcli(f"train {tiny} --code own.py -s task.name=own -o run", 2)
    assert told in commands.vitcli("experiments", "check", "--code", "own.py")[1]


def test_the_loss_of_a_batch_is_compared_for_few_images():
    seen, told = [], []
    spec = SimpleNamespace(row=SimpleNamespace(source="own.py")), SimpleNamespace(accumulate=2)
    task: Any = SimpleNamespace(
        spec=SimpleNamespace(task=spec[0], train=spec[1]),
        module=torch.nn.Identity(),
        losses=lambda batch: {"loss": seen.append(len(batch["x"])) or batch["x"].sum()},
    )
    contract.warn_of_parts(task, {"x": torch.ones(640)}, told.append)
    assert (max(seen), len(told)) == (16, 1), "all ranks' images of a step need not fit on one"


MASKED = """
import torch
from torch import nn
from vitcli.parts import attention
@attention
class Local(nn.Module):
    def __init__(self, shape):
        super().__init__()
        place = torch.arange(shape.num_tokens)
        far = (place[:, None] - place).abs() > 2
        self.register_buffer("mask", torch.zeros(far.shape).masked_fill(far, float("-inf")))
    def forward(self, q, k, v):
        return (q @ k.mT + self.mask).softmax(-1) @ v
"""


@pytest.mark.parametrize("decay", ["null", "0.9"])
def test_a_mask_of_own_code_is_infinite_and_the_training_has_a_result(tiny, decay):
    Path("mask.py").write_text(MASKED)
    words = f"-s model.attention=Local -s train.ema_decay={decay} --epochs 1 -o run"
    vitcli(f"train {tiny} --code mask.py {words}")
    vitcli("eval run --trust-code")
    commands.said(0, "runs", "verify", "run")


def test_a_batch_norm_inside_own_code_is_known(tiny):
    norm = "self.norm = nn.BatchNorm2d(3)"
    Path("net.py").write_text(NET % (norm, "self.head(self.norm(self.maps(x)).mean((2, 3)))"))
    words = f"train {tiny} --code net.py -s model.family=Net -s optim.name=adamw --dry-run"
    assert "batch norm would see only a part" in vitcli(f"{words} -s train.accumulate=2", 2)
    model = nn.Sequential(nn.BatchNorm1d(3, affine=False))
    with FrozenBuffers(model):
        model(torch.randn(8, 3))
    assert (model[0].num_batches_tracked, model[0].running_mean.any()) == (0, False)


COUNTED = """
import torch
from vitcli.parts import Classify, objective
@objective
class Counted(Classify):
    @classmethod
    def make_module(cls, spec):
        module = super().make_module(spec)
        module.register_buffer("count", torch.zeros(()))
        return module
    def losses(self, batch):
        self.module.count += 1
        return super().losses(batch)
"""


def test_the_check_of_own_code_leaves_its_state_as_it_was(tiny):
    Path("counted.py").write_text(COUNTED)
    vitcli(f"train {tiny} --code counted.py -s task.name=Counted --epochs 1 -o run")
    stored = latest_checkpoint(Path("run/checkpoints"), print)
    assert stored.part("model")["count"] == stored.step


@pytest.mark.parametrize(
    "change",
    [
        lambda inner: setattr(inner, "qkv", Lora(inner.qkv)),
        lambda inner: inner.qkv.register_forward_hook(lambda *_: None),
    ],
)
def test_kernels_leave_changed_layers_to_torch(change):
    model = build_model(model_spec(**SIZES | {"embed_dim": 32}), 0)
    inner = model.blocks[0].attn.inner
    inner.backend = SimpleNamespace(attention_branch=lambda *_: "of the kernels")
    tokens = torch.randn(2, 5, 32), nn.Identity()
    assert inner.after_norm(*tokens, adds=True, num_queries=5) == "of the kernels"
    change(inner)
    assert inner.after_norm(*tokens, adds=True, num_queries=5) is None


class Lora(nn.Linear):
    """A linear layer that computes more than x W^T + b."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__(layer.in_features, layer.out_features)


def test_a_part_that_fails_in_a_worker_fails_its_trials_only(tiny, sketched):
    Path("bad.py").write_text(BAD + TAUGHT)
    Path("bad.yaml").write_text(
        f"code: [bad.py]\nbase: {tiny}\nseeds: [0]\ntrain: {{epochs: 1}}\n"
        "variants: {ends: {model.attention: Ends}, fine: {task: {name: taught, teacher: x}},"
        " fails: {model.attention: Fails}}\n"
    )
    talk = vitcli("ablate ./bad.yaml -j 1", 3)
    assert f"code/bad.py:{line_of('Fails') + 2}: in forward: RuntimeError" in talk
    assert f"code/bad.py:{line_of('Ends') + 2}: in forward: SystemExit" in talk
    states = {name: RunDir(Path(f"runs/bad/{name}/seed0")) for name in ("fine", "fails", "ends")}
    assert read_record(states["fine"]).status == "finished"
    for name in ("fails", "ends"):
        assert not states[name].exists or read_record(states[name]).status == "failed"


def test_options_are_checked_like_fields_and_parts_are_in_the_schema(tiny, every):
    for settings, problem in {
        "Unifrom": "model.attention: should be .*'Uniform', got 'Unifrom'",
        "softmax -s model.attention.share=2": "'softmax'",
        "Uniform -s model.attention.shore=2": "did you mean '.*share'",
        "Uniform -s model.attention.share=x": "got 'x'",
    }.items():
        words = f"train {tiny} --code every.py -s model.attention={settings} --dry-run"
        assert re.search(problem, vitcli(words, 2))
    schema = json.loads(vitcli("experiments schema --code every.py"))
    attention = schema["properties"]["model"]["anyOf"][0]["properties"]["attention"]
    assert "Uniform" in [each.get("const") for each in attention["oneOf"]]


def test_options_belong_to_the_configuration_and_reach_the_parts(tiny):
    before = config_hash(load_experiment(str(tiny)).spec)
    Path("every.py").write_text(EVERY.partition("@metric")[0])
    own_code.load([Path("every.py")])
    spec = load_experiment(str(tiny)).spec
    assert (spec.code, config_hash(spec)) == ({}, before), "it uses built-in parts only"
    values = ("Uniform", {"name": "Uniform", "share": 1}, {"name": "Uniform", "share": 2})
    specs = [load_experiment(str(tiny), {"model.attention": value}).spec for value in values]
    assert specs[0] == specs[1] != specs[2]
    hashes = [config_hash(spec) for spec in specs]
    assert hashes[0] == hashes[1] != hashes[2]
    assert differences(specs[0], specs[2]) == {"model.attention.share": (None, 2.0)}
    uniform = {"name": sys.modules["every"].Uniform, "share": 0.5}
    sizes = {"img_size": 8, "in_chans": 3, "num_classes": 2}
    model: Any = api.build_model(str(tiny), attention=uniform, **sizes)
    assert model.blocks[0].attn.inner.attend.share == 0.5
    changes = {"optim.schedule": {"name": "stairs", "steps": 1}}
    schedule = load_experiment(str(tiny), changes).spec.optim.schedule
    assert lr_factor(5, schedule=schedule, warmup_steps=0, num_steps=10) == 1


def test_a_default_of_an_own_optimiser_that_the_experiment_replaces_is_named(tiny):
    lion = "lr, *, betas=(0.9, 0.99), eps=1e-8, momentum=0.9, power: float"
    Path("every.py").write_text(EVERY.replace("lr, *, power: float", lion))
    talk = commands.typed(f"train {tiny} --code every.py -s optim.name=Descent --dry-run")[1]
    assert "note: Descent gets optim.betas (0.9, 0.999), not its own default (0.9, 0.99)\n" in talk
    assert talk.count("own default") == 1


def test_a_schedule_may_return_a_tensor_and_what_is_no_number_is_named(tiny):
    text = "import torch\nfrom vitcli.parts import schedule\n@schedule\ndef poly(progress):\n"
    words = f"train {tiny} --code poly.py -s optim.schedule=poly -s optim.warmup_epochs=0"
    Path("poly.py").write_text(f"{text}    return None\n")
    wanted = "poly.py:3: schedule poly returned NoneType, not one number"
    assert wanted in vitcli(f"{words} --epochs 1 -o none", 2)
    as_new_process()
    Path("poly.py").write_text(f"{text}    return torch.tensor(1 - progress)\n")
    vitcli(f"{words} --epochs 1 -o poly")


def test_an_own_attention_gets_all_queries_although_the_head_reads_cls_only(here):
    own = EVERY.replace(
        "self.share * v.mean(2, keepdim=True).expand_as(v)", "v * q.mean(2)[:, :, None]"
    )
    Path("every.py").write_text(own)
    own_code.load([Path("every.py")])
    model: Any = build_model(model_spec(attention="Uniform", pool="cls", **SIZES), 0)
    images = torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(model.features(images), model.forward_features(images)[:, 0])


FIELDS = sorted({name for row in FAMILIES.values() for name in row.spec.model_fields})
OPTIONS = [name for name in FIELDS if name not in ModelSpec.model_fields]
"""Options with the names of all fields of all families."""
ARGUMENTS = ", ".join(f"{name}: str = 'x'" for name in OPTIONS)
ODD = f"""
from torch import nn
from vitcli.parts import model

@model
class Odd(nn.Module):
    def __init__(self, *, img_size, in_chans, num_classes, {ARGUMENTS}):
        super().__init__()
        self.body = nn.Conv2d(in_chans, 4, 3, padding=1)
        self.head = nn.Linear(4, num_classes)
    def forward(self, images):
        return self.head(self.body(images).mean((2, 3)))
"""


@pytest.mark.plugin("distil", "exports", "page", "trackers")
def test_an_own_model_with_any_option_names_teaches_and_only_a_training_needs_its_code(
    tiny, without_workers, sketched
):
    Path("odd.py").write_text(ODD)
    head = f"code: [odd.py]\nbase: {tiny}\nseeds: [0, 1]\ntrain: {{epochs: 1, limit_batches: 1}}\n"
    odd = "{model.family: Odd}, deep: {model: {family: Odd, depth: deep, patch_size: wide}}"
    Path("first.yaml").write_text(f"{head}variants: {{vit: {{}}, odd: {odd}}}\n")
    teacher = "name: distil, teacher: 'first/odd/seed{seed}'"
    part = "kind: features, layers: [1], teacher_layers: [net.body]"
    Path("second.yaml").write_text(
        f"{head}variants: {{alone: {{}}, logits: {{task: {{{teacher}}}}},"
        f" features: {{task: {{{teacher}, {part}}}}}}}\n"
    )
    vitcli("ablate ./second.yaml --dry-run", 2)  # its teachers are not trained
    vitcli("ablate ./first.yaml -j 1")
    vitcli("ablate ./second.yaml -j 1")
    student = RunDir(Path("runs/second/logits/seed1"))
    code = {"odd.py": hashlib.sha256(ODD.encode()).hexdigest()}
    assert (student.spec().code, student.spec().task.taught_by.code) == ({}, code)
    for copy in Path("runs").glob("*/code"):
        shutil.rmtree(copy)
    rows = json.loads(vitcli("runs ls --json"))["runs"]
    assert [row["state"] for row in rows] == ["finished"] * 12
    for row in rows:
        vitcli(f"runs verify {row['name']}")
    changed = vitcli("runs diff first/odd/seed0 first/deep/seed0")
    assert re.search(r"^model\.patch_size +x +wide$", changed, re.M)
    for command in ("runs show first/deep/seed0", "runs page", "runs export -o table"):
        vitcli(command)
    assert "own code is needed: odd.py" in vitcli("eval first/odd/seed0", 2)
    for kind in ("logits", "features"):
        vitcli(f"eval second/{kind}/seed0")
        vitcli(f"export second/{kind}/seed0 --format safetensors -o {kind}.safetensors")
        vitcli(f"train --resume second/{kind}/seed0")
    config = Path("runs/second/logits/seed1/config.yaml")
    old, count = re.subn("    code:\n      odd.py: \\w+\n", "", config.read_text())
    config.write_text(old)
    meta = config.with_name("meta.json")
    meta.write_text(json.dumps(json.loads(meta.read_text()) | {"config_sha256": None}))
    assert count == 1
    vitcli("eval second/logits/seed1")  # as 1.0.0 wrote it
    words = f"train {tiny} -s task.name=distil -s task.teacher=first/odd/seed0 --epochs 1 -o new"
    vitcli(words, 2)
    vitcli(f"{words.replace('--epochs 1', '--stop-after 1')} --code odd.py")
    vitcli("train --resume new", 2)
    Path("odd.py").write_text(ODD + "# changed\n")
    vitcli("train --resume new --code odd.py", 2)
    vitcli("train --resume new --trust-code")


def test_an_own_data_set_is_read_and_belongs_to_the_configuration(here):
    (squares,) = re.findall(r"^@data_set\n.*?(?=^```$)", PAGE.read_text(), re.M | re.S)
    imports = "import numpy as np\nfrom vitcli.parts import data_set\n"
    Path("squares.py").write_text(imports + squares)
    vitcli("experiments check --code squares.py")
    for command in ("info", *["check"] * has("data_check")):
        vitcli(f"data {command} squares:80", 2)
        vitcli(f"data {command} squares:80 --code squares.py")
    Path("e.yaml").write_text("code: [squares.py]\nbase: quickstart\n")
    Path("s.yaml").write_text("base: ./e.yaml\nseeds: [0]\nvariants: {a: {}}\n")
    vitcli("ablate ./s.yaml --data squares:80 --status")
    vitcli("train ./e.yaml --data squares:80 --epochs 1 -o run")
    spec = RunDir(Path("run")).spec()
    assert (spec.data.name, [*spec.code]) == ("squares:80", ["squares.py"])
    vitcli("runs show run")
    vitcli("eval run", 2)
    vitcli("eval run --trust-code")
    as_new_process()
    Path("pairs.py").write_text(f"{imports}@data_set\ndef pairs(text):\n    return [], []\n")
    assert "pairs.py:3: returned tuple" in vitcli("data info pairs:80 --code pairs.py", 2)


MAPPED = """
import torch
from torch import nn
from vitcli.parts import attention

@attention
class Mapped(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.softmax_scale = 3.0  # the name of a fact of built-in softmax
    def weights(self, q, k):
        return {weights}
    def forward(self, q, k, v):
        return {output}
"""
WEIGHTS = "(q @ k.mT * 3).softmax(-1)"
STATED = "self.weights(q, k) @ v"


@pytest.mark.parametrize(
    ("weights", "output", "more"),
    [
        (WEIGHTS, "nn.functional.scaled_dot_product_attention(q, k, v, scale=3.0)", False),
        (WEIGHTS, f"{STATED} + v", True),
        (f"2 * {WEIGHTS}", STATED, None),
        (f"1.5 * {WEIGHTS} - 0.5 * torch.eye(q.shape[2])", STATED, None),
        ("(q @ k.mT).softmax(-1)[:, :, :, :3]", f"{WEIGHTS} @ v", None),
    ],
)
def test_maps_of_an_own_attention_are_of_the_trained_network(tiny, weights, output, more):
    Path("own.py").write_text(MAPPED.format(weights=weights, output=output))
    vitcli(f"train {tiny} --code own.py -s model.attention=Mapped --epochs 1 -o run")
    commands.save_picture("x.png", (8, 8))
    words = "attn-map run x.png --trust-code --method"
    files = "-o map.json", "-o map.html"
    refused = {"rollout": more is not False, "grad-rollout": more is not False, "raw": more is None}
    for method, is_refused in refused.items():
        said = "".join(commands.typed(f"{words} {method} {files[0]} --json", 2 * is_refused))
        assert ("more than" in said) == (more is True)
    vitcli(f"attn-map run x.png --trust-code {files[1]}", 2 * (more is not False))
    vitcli("visualize run --trust-code --what heads,distance,mistakes,explorer --num-images 4")
    drawn = {path.stem for path in Path("figures/run").glob("*.[ph]*")}
    wanted = {None: set(), True: {"heads", "distance"}, False: {"heads", "distance", "explorer"}}
    assert drawn - {"mistakes"} == wanted[more]
    if more is None:
        return
    model: Any = load_model("run")
    images = torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(model.forward_with_weights(images)[0], model(images))
