"""A Slurm of one node on this machine: munge, slurmctld and slurmd in a folder of their own.

There is no accounting: slurmdbd needs a database server, and vitcli asks no accounting.
"""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol")
CONFIGURATION = """
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CryptoType=crypto/munge
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
SchedulerParameters=sched_interval=2,bf_interval=2
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 RealMemory=1000 State=UNKNOWN
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""
READY = 60
"""Seconds that the node may take to become idle."""


def why_not() -> str:
    """Return why no Slurm can be started here; '' if it can."""
    missing = [name for name in PROGRAMS if not find_program(name)]
    if missing:
        return f"needs Slurm and munge: {missing[0]} is missing"
    return "" if os.geteuid() == 0 else "slurmd needs root"


def find_program(name: str) -> str | None:
    """Return the path of a program; daemons are outside of some users' PATH."""
    return shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")


@contextmanager
def slurm(folder: Path) -> Iterator[dict[str, str]]:
    """Run a Slurm while entered; yield the variables that lead its programs to it."""
    for name in ("munge", "state", "spool"):
        (folder / name).mkdir(parents=True, mode=0o700)
    configuration = folder / "slurm.conf"
    host = socket.gethostname()
    text = CONFIGURATION.format(host=host, folder=folder, ports=free_ports(2))
    configuration.write_text(text)
    environment = os.environ | {"SLURM_CONF": str(configuration)}
    with ExitStack() as running:
        for words in (munge_words(folder / "munge"), ["slurmctld", "-D"], ["slurmd", "-D"]):
            log = running.enter_context((folder / f"{words[0]}.txt").open("w"))
            program = [find_program(words[0]) or "", *words[1:]]
            process = subprocess.Popen(program, env=environment, stdout=log, stderr=log)
            running.callback(process.wait)
            running.callback(process.terminate)
            time.sleep(1)
        wait_until_idle(environment, folder)
        yield {"SLURM_CONF": str(configuration)}


def munge_words(folder: Path) -> list[str]:
    """Write a key; return the command that runs munge with it."""
    (folder / "key").write_bytes(os.urandom(1024))
    (folder / "key").chmod(0o600)
    files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log"}
    options = [f"--{name}={folder / file}" for name, file in files.items()]
    return ["munged", "--foreground", "--force", f"--seed-file={folder / 'seed'}", *options]


def free_ports(count: int) -> list[int]:
    """Return ports that nothing listens on."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def wait_until_idle(environment: dict[str, str], folder: Path) -> None:
    """Wait for the node."""
    until = time.monotonic() + READY
    while True:
        words = ["sinfo", "--noheader", "--format=%t"]
        found = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
        if found.stdout.strip() == "idle":
            return
        logs = "\n".join(path.read_text() for path in folder.glob("*.log"))
        assert time.monotonic() < until, f"{found.stderr}\n{logs}"
        time.sleep(0.5)
