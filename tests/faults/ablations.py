"""Ablations in which a worker is killed or hangs: every trial ends as in a calm one.

One variant diverges; that is its result in every run. A calm study is compared with each disturbed
one, trial by trial.
"""

import os
import random
import shutil
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

from tests.faults.fork_server import Child, Tally, fingerprint, main, make_experiment
from vitcli.runner.engines import local as engine
from vitcli.runner.run.folder import RunDir
from vitcli.runner.study.definition import load_study
from vitcli.runner.study.plan import Options, plan_study
from vitcli.runner.study.run import run_study

STUDY = """
base: {base}
seeds: [0, 1, 2]
threads: 1
variants:
  baseline: {{}}
  no_positional_encoding: {{model.pos_embed: none}}
  single_head: {{model.num_heads: 1}}
  no_residual: {{model.residual: none, model.drop_path: 0.0}}
  no_ffn: {{model.ffn: none}}
  absurd_rate: {{optim.lr: 100.0, optim.max_grad_norm: null, optim.name: sgd}}
"""
LONGEST = 900
"""Seconds for 18 trainings beside other programs."""
EVENT_TIMEOUT, START_TIMEOUT = 10.0, 30.0
"""Seconds after which a silent worker counts as hanging (an hour, at its start four, elsewhere)."""


def campaign(scratch: Path, count: int, seed: int) -> dict[str, Any]:
    """So many ablations of 6 variants with 3 seeds; in each fourth a worker is stopped for good."""
    study, rng = scratch / "tiny-ablation.yaml", random.Random(seed)
    study.write_text(STUDY.format(base=make_experiment(scratch, 3)))
    run_all(study, scratch / "first")  # decodes the data, compiles the kernels
    began = time.monotonic()
    run_all(study, scratch / "calm")
    longest = time.monotonic() - began
    calm = results(scratch / "calm")
    tally = Tally(differing_trials=0)
    diverged = sum(value == "diverged" for value in calm.values())
    hung = 0
    for number in range(count):
        folder, hangs = scratch / f"run{number}", number % 4 == 3
        code, was_struck = 0, False
        while code == 0 and not was_struck:  # one that ends before the blow is tried again
            shutil.rmtree(folder, ignore_errors=True)
            child = Child(partial(run_all_here, study, folder), scratch / "log.txt")
            was_struck = strike(child, rng, longest, signal.SIGSTOP if hangs else signal.SIGKILL)
            code = child.end(LONGEST)
        hung += hangs
        tally.check("differing_trials", code == 0, f"{folder.name}: {code}: {child.words()}")
        found = results(folder)
        for name in calm.keys() | found.keys():
            same = found.get(name) == calm.get(name)
            tally.check("differing_trials", same, f"{folder.name}: {name}: {found.get(name)}")
        shutil.rmtree(folder)
    totals = {"ablations": count, "hung": hung, "trials_each": len(calm), "diverged_each": diverged}
    return {**totals, **tally.counts, "failures": tally.failures}


def run_all(study: Path, folder: Path) -> None:
    child = Child(lambda: run_all_here(study, folder), folder.parent / "log.txt")
    assert child.end(LONGEST) == 0, child.words()


def run_all_here(study: Path, folder: Path) -> None:
    engine.EVENT_TIMEOUT, engine.START_TIMEOUT, engine.EXIT_TIMEOUT = (
        EVENT_TIMEOUT,
        START_TIMEOUT,
        EVENT_TIMEOUT,
    )
    todo = plan_study(load_study(str(study)), folder, ())
    run_study(todo, Options(jobs=2, device="cpu", command="again"), lambda event: None)


def strike(child: Child, rng: random.Random, longest: float, number: int) -> bool:
    """Send a signal to a worker that has begun, at a random time; whether there was one."""
    deadline = time.monotonic() + rng.uniform(0.3, 1.0) * longest
    while time.monotonic() < deadline and not child.wait(0.01):
        pass
    while child.code is None and not child.wait(0.01):
        if workers := workers_of(child.pid):
            os.kill(rng.choice(workers), number)
            return True
    return False


def workers_of(pid: int) -> list[int]:
    """The child processes of a driver."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return [int(word) for task in tasks for word in (task / "children").read_text().split()]
    except OSError:
        return []


def results(folder: Path) -> dict[str, str]:
    """Trial -> the hash of its bits, or "diverged"."""
    found = {}
    for path in sorted(folder.rglob("config.yaml")):
        name, state = str(path.parent.relative_to(folder)), RunDir(path.parent).status()["state"]
        found[name] = fingerprint(path.parent) if state == "finished" else str(state)
    return found


if __name__ == "__main__":
    main("ablations", campaign, 3)
