"""The bundled model, and how a bundled model is made."""

import json
from pathlib import Path

import pytest

from vitcli.runner.errors import ConfigError
from vitcli.runner.evaluate.weights import default_run
from vitcli.runner.experiment.config import load_experiment
from vitcli.runner.experiment.diff import differences, with_data_defaults
from vitcli.runner.run.folder import BUNDLED, RunDir, bundled_models, find_run
from vitcli.runner.run.listing import remove_runs
from vitcli.runner.run.record import read_record
from vitcli.runner.train.start import resume_experiment

NAME = "cifar10-pocket"
POCKET = RunDir(BUNDLED / NAME)
EXPERIMENTS = Path(__file__).parents[3] / "experiments"


def test_the_package_holds_one_small_model_that_says_what_it_is():
    assert bundled_models() == [NAME]
    size = sum(path.stat().st_size for path in POCKET.path.rglob("*.safetensors"))
    assert size <= 1_500_000
    record, card = read_record(POCKET), (POCKET.path / "README.md").read_text()
    result = record.result
    assert result["test_accuracy"] >= 0.85
    assert (
        result["epochs"] == POCKET.spec().train.epochs == read_record(POCKET).metrics[-1]["epoch"]
    )
    assert f"{100 * result['test_accuracy']:.2f} % of 10,000 images" in card
    assert record.data_hash in card


def test_it_was_trained_by_the_experiment_of_its_name(here):
    file = load_experiment(str(EXPERIMENTS / f"{NAME}.yaml")).spec
    meta = read_record(POCKET).meta
    changed = differences(with_data_defaults(file, POCKET.spec(), meta), POCKET.spec())
    assert set(changed) <= {"task.teacher.sha256"}
    assert not meta["dirty"]


def test_it_is_only_read(here):
    with pytest.raises(ConfigError, match="is a bundled model"):
        remove_runs([find_run(NAME)])
    with pytest.raises(ConfigError, match="is a bundled model"):
        resume_experiment(NAME)
    assert (POCKET.path / "config.yaml").exists()


def test_a_run_of_ones_own_goes_before_it(copy_of_run, here):
    assert default_run().name == NAME
    own = RunDir(copy_of_run(here / "runs" / NAME))
    assert default_run().path.resolve() == find_run(NAME).path.resolve() == own.path
    meta = read_record(own).meta
    strings = ({"variant": "no-ffn"}, {"data": "shapes"}, {"data": "scenes"})
    for fact in (*strings, {"new_head": True}):
        (own.path / "meta.json").write_text(json.dumps(meta | fact))
        assert default_run().is_bundled, "a trial, a generated data set, or a head without training"
    (own.path / "meta.json").write_text(json.dumps(meta))
    own.set_status("interrupted", 5)
    assert default_run().is_bundled
