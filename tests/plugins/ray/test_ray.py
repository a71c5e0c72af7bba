"""`ablate --engine ray`: drivers on Ray train one study, though each is killed."""

import json
import signal
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.cli.commands import typed
from tests.patience import HANG
from tests.runner.engines.kills import (
    FAR,
    check_that_both_have_the_same_trials,
    drivers_here,
    kill_each_once,
    train_calmly,
)
from tests.runner.engines.studies import ablate, table_of, wait_for, write_study
from tests.runner.study.trials import STUDY, fabricate
from vitcli.plugins.ray.cluster import drive, room
from vitcli.runner.errors import ResourceError

needs_ray = pytest.mark.skipif(not find_spec("ray"), reason="needs pip install ray")


@pytest.mark.parametrize(
    ("cores", "gpus", "count"), [(1, 0.0, 6), (2, 0.0, 3), (1, 0.25, 4), (1, 1.0, 1), (1, 2.0, 0)]
)
def test_a_driver_fits_on_a_machine_with_all_its_cores_and_gpus(cores, gpus, count):
    nodes = [{"CPU": 4.0, "GPU": 1.0}, {"CPU": 2.0}]
    if count:
        assert room(nodes, cores, gpus) == count
    else:
        with pytest.raises(ResourceError):
            room(nodes, cores, gpus)


def test_a_machine_without_the_folder_of_the_study_trains_nothing(here):
    (here / "logs").mkdir()
    assert "does not see" in drive(["--version"], str(here), "logs/ray0.txt")


def test_a_finished_study_needs_no_cluster(here, monkeypatch, sketched):
    monkeypatch.setattr("vitcli.runner.errors.find_spec", lambda _: True)  # ray is installed
    Path("mine.yaml").write_text(STUDY)
    for variant in ("full", "no-norm"):
        for seed in (0, 1):
            fabricate(variant, seed)
    assert "no-norm" in typed("ablate mine.yaml --engine ray -j 2")[0]


@pytest.mark.slow
@needs_ray
def test_two_drivers_on_ray_each_killed_once_end_with_the_trials_of_one(tiny, environment):
    train_calmly(environment)
    driver = ablate(environment, FAR, "--engine", "ray", "-j", "2")
    kill_each_once(lambda: None)
    table_of(driver, FAR)
    check_that_both_have_the_same_trials()
    assert not drivers_here()


@pytest.mark.slow
@needs_ray
def test_ctrl_c_stops_the_drivers_on_ray_after_a_checkpoint(tiny, environment):
    write_study(epochs=400)
    driver = ablate(environment, FAR, "--engine", "ray", "-j", "2")
    wait_for(lambda: len(list(FAR.glob("*/*/metrics.jsonl"))) == 2, driver, FAR)
    driver.send_signal(signal.SIGINT)
    driver.communicate(timeout=HANG)
    assert driver.returncode == 130
    states = [json.loads(path.read_text())["state"] for path in FAR.rglob("status.json")]
    assert states == ["interrupted"] * 2
    assert not drivers_here()
