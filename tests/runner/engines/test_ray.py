"""Ray: a study survives a killed worker and a lost machine, with the table of this machine."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.runner.engines.studies import ablate, table_of, talk, wait_for, workers_of, write_study

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not find_spec("ray"), reason="needs pip install ray"),
]


CLUSTER = """
import os, sys
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
second = cluster.add_node(num_cpus=1)
cluster.wait_for_nodes()
print(cluster.address, flush=True)
if sys.stdin.readline():
    cluster.remove_node(second, allow_graceful=False)
    print("removed", flush=True)
sys.stdin.read()
cluster.shutdown()
"""
"""Prints the address of two machines. A line on stdin removes the second one, its end both."""


@pytest.fixture
def cluster(environment) -> Iterator[subprocess.Popen[str]]:
    """A cluster of two machines with one core each; its first line is the address."""
    process = subprocess.Popen(
        [sys.executable, "-c", CLUSTER],
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
    words = ["--engine", "ray", "--address", address, "--cpus", "3"]
    refused = ablate(environment, Path("other"), *words)
    refused.communicate()
    assert refused.returncode == 5, "no machine has 3 cores"
