"""Studies from Python: parts of cells and imported files, the same results as the command."""

import importlib
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import vitcli
from tests.cli import commands
from tests.own_code import as_new_process, forget
from tests.same_run import assert_same_run
from vitcli.runner.run.folder import RunDir
from vitcli.runner.run.record import read_record
from vitcli.runner.study import from_python
from vitcli.runner.study.from_python import FIELDS, call_text, define_study

__all__ = ["forget"]
PART = """
import torch
from vitcli.parts import attention

@attention(time="N^2")
class Scaled(torch.nn.Module):
    share = 0.5

    def __init__(self, shape, *, power: float = 1.0):
        super().__init__()
        self.power = power

    def forward(self, q, k, v):
        return self.share * v**self.power
"""


def run_cell(text: str) -> Any:
    """Return the part that a cell of a notebook defines."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(text, "<cell>", "exec"), names)  # noqa: S102
    return names["Scaled"]


@pytest.fixture
def module(here, monkeypatch) -> ModuleType:
    Path("scaled_file.py").write_text(PART)
    monkeypatch.syspath_prepend(".")
    return importlib.import_module("scaled_file")


@pytest.fixture
def study(tiny, sketched) -> Callable[..., vitcli.ResultTable]:
    def run(changes: dict[str, Any], **options: Any) -> vitcli.ResultTable:
        variants = {"full": {}, "mine": changes}
        given: dict[str, Any] = {"seeds": 1, "name": "s", "epochs": 1, "device": "cpu"}
        return vitcli.ablate(str(tiny), variants, **given | options)

    return run


def states_of(capsys) -> str:
    return capsys.readouterr().err.partition("\n")[0].rpartition(": ")[2]


def test_a_study_is_that_of_the_command(study, tiny, without_workers):
    table = study({"model.depth": 1}, seeds=[3])
    assert table.folder == Path("runs/s")
    Path("s.yaml").write_text(
        f"base: {tiny}\nseeds: [3]\ntrain: {{epochs: 1}}\n"
        "variants: {full: {}, mine: {model.depth: 1}}\n"
    )
    files = {path: path.stat().st_mtime_ns for path in Path("runs/s").rglob("*.*")}
    code, shown, _ = commands.vitcli("ablate", "./s.yaml", "--format", "json")
    theirs, ours = json.loads(shown), json.loads(table.render("json"))
    assert (code, theirs.pop("command")) == (0, "vitcli ablate s.yaml")
    assert ours.pop("command").startswith("vitcli.ablate(base=")
    assert ours == theirs
    assert {"results.json", "report.html", "table.tex", "forest.svg"} <= {f.name for f in files}
    for path in (Path("runs/s/plan.json"), *Path("runs/s").glob("*/seed3/*.npz")):
        assert path.stat().st_mtime_ns == files[path], "nothing was trained again"
    assert "<table" in table._repr_html_()
    assert "<script" not in table._repr_html_()
    assert str(table) == table.render()


def test_seeds_are_any_whole_numbers():
    fields = {"base": "quickstart", "variants": {"a": {}, "b": {"optim.lr": np.float32(0.5)}}}
    for seeds in (2, np.int64(2), range(2), [np.int64(0), 1], np.arange(2)):
        found = define_study(**fields, seeds=seeds, name="s", given={})
        assert (found.seeds, found.variants[1].spec.optim.lr) == ((0, 1), 0.5)
        given = dict.fromkeys(("name", "code", *FIELDS)) | fields | {"seeds": seeds}
        assert call_text(given).endswith(("seeds=2)", "seeds=[0, 1])"))


def test_a_part_of_a_cell_trains_in_this_process_and_is_not_saved(study, pictures):
    run_cell(PART)
    part = run_cell(PART.replace("0.5", "0.25"))
    data = vitcli.load_data(f"imagefolder:{pictures}")
    sizes = {"img_size": data.img_size, "in_chans": data.in_chans, "num_classes": data.num_classes}
    model = vitcli.build_model("quickstart", attention=part, depth=1, pool="mean", **sizes)
    assert isinstance(model.blocks[0].attn.inner.attend, part), "the cell that ran last"
    assert [found["epoch"] for found in vitcli.fit(model, data, epochs=1, batch_size=8)] == [1]
    with pytest.raises(vitcli.UserError, match=r"Scaled: .* put it into a file"):
        next(vitcli.fit(model, data, epochs=1, batch_size=8, save="saved"))
    with pytest.raises(vitcli.UserError, match=r"Scaled: .* put it into a file"):
        study({"model.attention": part})
    assert not Path("saved").exists()
    assert not Path("runs").exists()


def test_an_imported_file_is_copied_so_that_workers_can_load_it(
    study, module, monkeypatch, capsys, without_workers
):
    study({"model.attention": {"name": module.Scaled, "power": 2.0}})
    assert Path("runs/s/code/scaled_file.py").read_text() == PART
    as_new_process()
    assert commands.vitcli("eval", "s/mine/seed0", "--code", "scaled_file.py")[0] == 0
    as_new_process()
    module = importlib.import_module("scaled_file")
    Path("scaled_file.py").write_text(f"{PART}\n# longer\n")
    with pytest.raises(vitcli.UserError, match=r"changed after it was imported.*reload"):
        study({"model.attention": module.Scaled})
    monkeypatch.setattr(from_python, "run_study", lambda plan, options, show: plan.states)
    capsys.readouterr()
    study({"model.attention": {"name": importlib.reload(module).Scaled, "power": 2.0}})
    assert states_of(capsys) == "1 finished, 1 stale"
    study({"model.attention": {"name": "Scaled", "power": 2.0}}, code=["scaled_file.py"])


def test_an_imported_package_folder_is_own_code(tiny, monkeypatch):
    Path("scaled_folder").mkdir()
    Path("scaled_folder/__init__.py").write_text("from .rule import Scaled\n")
    Path("scaled_folder/rule.py").write_text(PART)
    monkeypatch.syspath_prepend(".")
    variants = {"a": {"model.attention": importlib.import_module("scaled_folder").Scaled}}
    study = define_study(str(tiny), variants, 1, "s", {})
    assert study.baseline.spec.code.keys() == {"scaled_folder/"}
    Path("scaled_folder/rule.py").write_text(f"{PART}# longer\n")
    with pytest.raises(vitcli.UserError, match=r"reload\(scaled_folder\.rule\)"):
        define_study(str(tiny), variants, 1, "s", {})


def test_a_signal_stops_a_study_and_the_call_continues(study, module, monkeypatch, without_workers):
    scaled = {"model.attention": module.Scaled}
    study(scaled, epochs=3, output="calm")
    monkeypatch.setattr(from_python, "LINE_SECONDS", 0.0)

    def interrupt(text: str) -> None:
        if "full/seed0  epoch 1 " in text:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(vitcli.UserError, match=r"of 2 trials done. Continue: vitcli\.ablate"):
        study(scaled, epochs=3, output="stopped", on_message=interrupt)
    study(scaled, epochs=3, output="stopped")
    assert_same_run(RunDir(Path("calm/mine/seed0")), RunDir(Path("stopped/mine/seed0")))


def test_a_part_that_fails_is_a_row_of_the_table(study, capsys, monkeypatch, without_workers):
    wrong = PART.replace("v**self.power", "v + q[..., :1].new_empty(3)")
    Path("wrong_file.py").write_text(wrong)
    table = study({"model.attention": "Scaled"}, code=["wrong_file.py"])
    assert "wrong_file.py:14: in forward: RuntimeError" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=list))
    full, mine = table.to_pandas()
    assert (full["variant"], full["state"], full["seed"]) == ("full", "finished", 0)
    assert 0 <= full["accuracy"] <= 1
    result = read_record(RunDir(Path(full["run"]))).result
    same = ("test_loss", "train_loss", "train_seconds", "train_flops", "images_per_second")
    assert {name: full[name] for name in same} == {name: result[name] for name in same}
    assert (full["parameters"], full["flops"]) == (result["parameters"], result["train_flops"])
    assert (full["epochs"], full["curve"]) == (1, [(1, full["accuracy"])])
    assert full.keys() == mine.keys() - {"model.attention"}
    assert (mine["curve"], mine["run"], mine["flops"]) == ([], None, None)
    assert (mine["state"], mine["accuracy"], mine["model.attention"]) == ("missing", None, "Scaled")
    rows = {row["name"]: row for row in vitcli.runs("s/*").to_pandas()}
    assert rows["s/full/seed0"]["test_score"] == full["accuracy"]


def test_a_frame_without_pandas_is_refused_in_one_line(here, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(vitcli.UserError, match="type: pip install pandas"):
        vitcli.runs().to_pandas()


class PurePart:
    """A class without a decorator."""


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"model.dept": 1}, {}, "ablate: variant 'mine': unknown field 'model.dept'"),
        ({"model.attention": PurePart}, {}, "ablate: .*PurePart.* a decorator of vitcli.parts"),
        ({"model.depth": 1}, {"name": "a/b"}, "name 'a/b'"),
        ({"model.depth": 1}, {"code": ["nope.py"]}, "nope.py: No such file"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_mistake_is_one_line(study, changes, options, message):
    with pytest.raises(vitcli.UserError, match=message) as caught:
        study(changes, **options)
    assert "\n" not in str(caught.value)
    assert not Path("runs/s").exists()
