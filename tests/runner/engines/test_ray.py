"""Ray: a study survives a killed worker and a lost machine, with the table of this machine."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.runner.engines.studies import (
    ablate,
    table_of,
    talk,
    wait_for,
    workers_of,
    write_study,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not find_spec("ray"), reason="needs pip install ray"),
]


@pytest.fixture
def cluster(environment) -> Iterator[subprocess.Popen[str]]:
    """A cluster of two machines with one core each; its first line is the address."""
    script = Path(__file__).with_name("ray_cluster.py")
    process = subprocess.Popen(
        [sys.executable, str(script)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    yield process
    process.communicate()


def line(cluster: subprocess.Popen[str]) -> str:
    assert cluster.stdout is not None
    return cluster.stdout.readline().strip()


def test_a_study_survives_a_killed_worker_and_a_lost_machine(tiny, environment, cluster):
    address = line(cluster)
    write_study(epochs=60)
    calm = table_of(ablate(environment, Path("calm"), "-j", "1"), Path("calm"))
    output = Path("far")
    driver = ablate(environment, output, "--engine", "ray", "--address", address)
    wait_for(lambda: len(list(output.glob("*/*/metrics.jsonl"))) >= 2, driver, output)
    wait_for(lambda: len(workers_of(output)) == 2, driver, output)
    os.kill(min(workers_of(output).values()), signal.SIGKILL)
    wait_for(lambda: "killed by SIGKILL" in talk(output), driver, output)
    wait_for(lambda: len(workers_of(output)) == 2, driver, output)
    assert cluster.stdin is not None
    cluster.stdin.write("remove\n")
    cluster.stdin.flush()
    assert line(cluster) == "removed"
    wait_for(lambda: "its machine or its Ray worker is gone" in talk(output), driver, output)
    assert table_of(driver, output) == calm
    assert len(calm) == 3
    assert not workers_of(output)
    assert not list(output.glob("logs/*.events"))


def test_ctrl_c_saves_checkpoints_and_the_study_continues_here(tiny, environment, cluster):
    address = line(cluster)
    write_study(epochs=60)
    output = Path("far")
    driver = ablate(environment, output, "--engine", "ray", "--address", address)
    wait_for(lambda: len(list(output.glob("*/*/metrics.jsonl"))) >= 2, driver, output)
    driver.send_signal(signal.SIGINT)
    driver.communicate()
    assert driver.returncode == 130, talk(output)
    states = [path.read_text() for path in output.glob("*/*/status.json")]
    assert len(states) == 2
    assert all('"interrupted"' in text for text in states), states
    assert "Continue: vitcli ablate" in talk(output)
    assert len(table_of(ablate(environment, output, "-j", "2"), output)) == 3


def test_a_trial_that_fits_nowhere_is_refused(tiny, environment, cluster):
    address = line(cluster)
    write_study(epochs=1)
    words = ["--engine", "ray", "--address", address, "--cpus", "3"]
    driver = ablate(environment, Path("far"), *words)
    driver.communicate()
    assert driver.returncode == 5
    assert "no machine of the Ray cluster has 3 cores" in talk(Path("far"))
