"""A row that is added to one table at run time can do all that the shipped rows can."""

import json
import os
import re
import shlex
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests import new_rows
from tests.same_run import assert_same_run
from tests.stopping import stop_after
from vitcli.cli.main import app
from vitcli.core.spec import OPTIMIZERS, SCHEDULES
from vitcli.core.spec.metrics import METRICS
from vitcli.core.spec.rows import Row
from vitcli.core.spec.slots import ATTENTIONS
from vitcli.runner.errors import ConfigError, StoppedError
from vitcli.runner.experiment.config import load_experiment
from vitcli.runner.run.folder import RunDir
from vitcli.runner.train.start import Request, start

ROOT = Path(__file__).parents[1]
ROWS = {"model.attention": "key_only", "optim.name": "sign"}


@pytest.fixture
def added(monkeypatch) -> None:
    """Both rows, until the test ends."""
    monkeypatch.setitem(ATTENTIONS, "key_only", new_rows.ATTENTION)
    monkeypatch.setitem(OPTIMIZERS, "sign", new_rows.OPTIMIZER)


def vitcli(command: str) -> str:
    done = CliRunner().invoke(app, shlex.split(command))
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize("row", ROWS.items(), ids=str)
def test_without_the_row_its_name_is_refused(tiny, row):
    """The control: the rows come from this test and nowhere else."""
    with pytest.raises(ConfigError, match=f"{row[0]}: should be .* or .*, got '{row[1]}'"):
        load_experiment(str(tiny), dict([row]))


@pytest.mark.usefixtures("added")
@pytest.mark.parametrize(("field", "name"), ROWS.items())
def test_it_is_named_in_a_file_and_on_the_command_line(tiny, field, name):
    group, key = field.split(".")
    Path("mine.yaml").write_text(f"base: {tiny}\n{group}: {{{key}: {name}}}\n")
    assert load_experiment("./mine.yaml").spec == load_experiment(str(tiny), {field: name}).spec
    told = f"{field}: should be 'softmax|{field}: should be 'adamw"
    with pytest.raises(ConfigError, match=rf"({told}).* or '{name}', got 'nothing'"):
        load_experiment(str(tiny), {field: "nothing"})


@pytest.mark.usefixtures("added")
@pytest.mark.parametrize(("field", "name"), ROWS.items())
def test_it_trains_and_resumes_to_the_same_bits(tiny, monkeypatch, field, name):
    experiment = load_experiment(str(tiny), {field: name, "train.accumulate": 2})
    calm = start(experiment, Request(output=Path("calm"))).run
    with monkeypatch.context() as patch:
        stop_after(patch, 7)
        with pytest.raises(StoppedError):
            start(experiment, Request(output=Path("stopped")))
    start(experiment, Request(output=Path("stopped"), resume=True))
    assert_same_run(calm, RunDir(Path("stopped")))
    plain = load_experiment(str(tiny), {"train.accumulate": 2})
    with pytest.raises(AssertionError):
        assert_same_run(calm, start(plain, Request(output=Path("plain"))).run)


@pytest.mark.usefixtures("added")
@pytest.mark.parametrize(("field", "name"), ROWS.items())
def test_its_training_is_estimated(tiny, field, name):
    estimates = [
        json.loads(vitcli(f"train {tiny} {change} --dry-run --json --device cpu"))
        for change in (f"-s {field}={name}", "")
    ]
    ours, plain = estimates
    assert ours["estimated_seconds"] > 0
    difference = ours["parameters"] - plain["parameters"]
    saved = plain["estimated_memory_bytes"] - ours["estimated_memory_bytes"]
    if name == "key_only":
        assert difference == 2 * 16, "a vector for each of two heads in each of two layers"
    else:
        assert saved == 4 * plain["parameters"], "one number a parameter instead of AdamW's two"


@pytest.mark.usefixtures("added")
def test_the_attention_is_measured_beside_the_others(here):
    sizes = "--embed-dim 8 --num-heads 2 --batch-size 1 --lengths 8,16"
    text = vitcli(
        f"bench attention {sizes} --rounds 1 --seconds 0 --device cpu --precision fp32"
        " -o growth.svg --json"
    )
    rows = {(row["attention"], row["kernels"]): row for row in json.loads(text)["rows"]}
    ours = rows["key_only", "plain"]
    assert (ours["stated_time"], ours["stated_memory"]) == ("N", "N")
    assert [point["tokens"] for point in ours["points"]] == [8, 16]
    assert all(point["seconds"] > 0 for point in ours["points"])
    assert "key_only" in Path("growth.svg").read_text()


@pytest.mark.usefixtures("added")
@pytest.mark.parametrize(("field", "name"), ROWS.items())
def test_training_steps_with_it_are_measured(tiny, field, name):
    options = "--rounds 1 --seconds 0 --device cpu --json"
    found = json.loads(vitcli(f"bench train {tiny} -s {field}={name} {options}"))
    assert found["images_per_second"] > 0


def test_both_are_ablated(tiny, added, monkeypatch):
    """The workers of a study are other processes; a plug-in on their path adds the rows there."""
    new_rows.write_plugin(Path("plugin"))
    paths = [str(Path("plugin").resolve()), str(ROOT), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    Path("mine.yaml").write_text(
        "question: do the new rows do anything?\n"
        f"base: {tiny}\ntrain: {{epochs: 1, limit_batches: 3}}\nseeds: [0]\n"
        "variants: {base: {}, key-only: {model.attention: key_only}, sign: {optim.name: sign}}\n"
    )
    table = vitcli("ablate mine.yaml")
    runs = {name: Path("runs/mine") / name / "seed0" for name in ("base", "key-only", "sign")}
    assert all(name in table for name in runs)
    states = [json.loads((run / "status.json").read_text())["state"] for run in runs.values()]
    assert states == ["finished"] * 3
    losses = {json.loads((run / "result.json").read_text())["test_loss"] for run in runs.values()}
    assert len(losses) == 3, "each row does something else"


@pytest.mark.usefixtures("added")
@pytest.mark.parametrize(("field", "name"), ROWS.items())
def test_it_is_in_the_schema(field, name):
    schema = json.loads(vitcli("experiments schema"))
    group, key = field.split(".")
    part = schema["properties"][group]
    spec = part["anyOf"][0] if "anyOf" in part else schema["$defs"]["OptimSpec"]
    found = {row["const"]: row["description"] for row in spec["properties"][key]["oneOf"]}
    assert found[name] == {"key_only": new_rows.ATTENTION, "sign": new_rows.OPTIMIZER}[name].about


def test_a_schedule_sets_the_learning_rates(tiny, monkeypatch):
    halves = Row(about="halves", build=lambda progress: 0.5 ** round(4 * progress))
    monkeypatch.setitem(SCHEDULES, "halves", halves)
    changes = {"optim.schedule": "halves", "optim.warmup_epochs": 0.0, "optim.lr": 1.0}
    run = start(load_experiment(str(tiny), changes), Request(output=Path("run"))).run
    rates = [record["lr"] for record in run.metrics()]
    assert len({*rates}) > 1
    assert {*rates} <= {1.0, 0.5, 0.25, 0.125, 0.0625}


def test_a_metric_is_measured_stored_and_written(tiny, monkeypatch):
    vitcli(f"train {tiny} --epochs 1 -o plain")
    monkeypatch.setitem(METRICS, "first_class", new_rows.METRIC)
    vitcli(f"train {tiny} --epochs 1 -o run")
    value = json.loads(Path("run/result.json").read_text())["test_first_class"]
    assert json.loads(vitcli("eval run --json"))["first_class"] == pytest.approx(value)
    assert value > 0
    assert re.search(rf"first class +{100 * value:.4f} %", vitcli("eval run"))
    assert re.search(rf"test_first_class +{100 * value:.4f} %", vitcli("runs show run"))
    assert "first_class" not in vitcli("runs show plain")


def rendered() -> set[str]:
    """The lines of the table in the documentation."""
    script = spec_from_file_location("slot_tables", ROOT / ".ci/slot_tables.py")
    assert script is not None
    assert script.loader is not None
    module = module_from_spec(script)
    script.loader.exec_module(module)
    return set(module.slots().splitlines())


def test_it_is_in_the_table_of_the_documentation(monkeypatch):
    plain = rendered()
    monkeypatch.setitem(ATTENTIONS, "key_only", new_rows.ATTENTION)
    monkeypatch.setitem(OPTIMIZERS, "sign", new_rows.OPTIMIZER)
    attention, optimizer = new_rows.ATTENTION.about, new_rows.OPTIMIZER.about
    assert rendered() - plain == {
        f"| `model.attention` | `key_only` | {attention} | time N, memory N |",
        f"| `optim.name` | `sign` | {optimizer} | state of 1 x the parameters |",
    }
