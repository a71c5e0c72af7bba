"""The door to the engines: what is unknown, not installed or not meant is refused in one line."""

import shutil

import pytest

from vitcli.runner.engines import make
from vitcli.runner.engines import ray as ray_engine
from vitcli.runner.engines import slurm as slurm_engine
from vitcli.runner.engines.engine import Cluster, Job, Setup
from vitcli.runner.engines.local import LocalEngine
from vitcli.runner.engines.make import ENGINES, check_engine, make_engine
from vitcli.runner.errors import ConfigError


def test_the_local_engine_is_made_from_its_setup(tmp_path):
    setup = Setup(threads=2, count=3, request={"device": "cpu"}, driver=1)
    engine = make_engine("local", tmp_path, [Job("a"), Job("b")], setup)
    assert isinstance(engine, LocalEngine)
    assert (engine.count, engine.threads, engine.request) == (2, 2, {"device": "cpu"})
    assert engine.name.format(0) == "worker1.0", "another driver has worker0"


@pytest.mark.parametrize(
    ("cluster", "text"),
    [
        (Cluster(engine="slrum"), r"--engine slrum: choose one of local, ray, slurm"),
        (Cluster(gpus=0.5), r"--gpus is an option of --engine ray and --engine slurm$"),
        (Cluster(engine="slurm", address="auto"), r"--address is an option of --engine ray$"),
        (Cluster(engine="ray", minutes=5), r"--time-limit is an option of --engine slurm$"),
        (Cluster(engine="slurm", gpus=0.5), r"--gpus 0.5: Slurm gives whole GPUs"),
    ],
)
def test_a_mistake_in_the_options_is_named(cluster, text):
    with pytest.raises(ConfigError, match=text):
        check_engine(cluster)


def test_what_is_not_installed_is_named(monkeypatch):
    for module in (ray_engine, slurm_engine):
        monkeypatch.setattr(module, "find_spec", lambda name: None)
    for name, package in (("ray", "ray"), ("slurm", "submitit")):
        with pytest.raises(ConfigError, match=f"pip install.*{package}"):
            check_engine(Cluster(engine=name))
    monkeypatch.setattr(slurm_engine, "find_spec", lambda name: True)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(ConfigError, match="sbatch"):
        check_engine(Cluster(engine="slurm"))
    assert make.REQUIRED.keys() < ENGINES.keys()
