"""Trainings that can be killed by the hundred: everything is imported once, each one is a fork.

A campaign is a module beside this one with ``campaign(scratch, count, seed) -> dict``, run as
``python -m tests.faults.NAME --count N --seed S``; the same seed gives the same plan. The parent
never trains, so that its children inherit no threads.
"""

import argparse
import hashlib
import importlib
import json
import os
import random
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.update(OMP_NUM_THREADS="1", VITCLI_OFFLINE="1")

from tests.conftest import draw_pictures
from tests.faults.results import FILE, keep
from tests.patience import HANG
from vitcli.runner.errors import InputError, UserError
from vitcli.runner.experiment.config import load_experiment
from vitcli.runner.run.checkpoint import latest_checkpoint
from vitcli.runner.run.folder import RunDir
from vitcli.runner.run.record import read_record
from vitcli.runner.train import trainer as training
from vitcli.runner.train.flops import count_operations
from vitcli.runner.train.prepare import Request
from vitcli.runner.train.prepare import prepare as planned
from vitcli.runner.train.train import train

training.SAVE_SHARE = float("inf")  # after every epoch, however short
for late in (
    "torch._dynamo",
    "tensorboard.plugins.hparams.plugin_data_pb2",
    "tensorboard.backend.event_processing.event_file_loader",
    "vitcli.runner.attn_map.training_pictures",
):
    importlib.import_module(late)  # a training does so on its way, in ten times its own time here
Campaign = Callable[[Path, int, int], dict[str, Any]]
TIMELESS = ("images_per_second",)
EXPERIMENT = """
model: {{patch_size: 4, embed_dim: 16, depth: 1, num_heads: 2, mlp_ratio: 1.0, pool: mean,
        proj_drop: 0.1, drop_path: 0.1}}
data: {{name: "imagefolder:{pictures}", augment: {{crop_padding: 1, flip: random, mixup: 0.5}}}}
optim: {{lr: 2.0e-3, warmup_epochs: 1.0}}
train: {{epochs: {epochs}, batch_size: 8, ema_decay: 0.9}}
"""


def make_experiment(scratch: Path, epochs: int) -> Path:
    """An experiment of 4 steps an epoch with dropout, mixing and an average, and its pictures."""
    path = scratch / "tiny.yaml"
    pictures = draw_pictures(scratch, train=16, test=6)
    path.write_text(EXPERIMENT.format(pictures=pictures, epochs=epochs))
    plan = planned(load_experiment(str(path)), Request(output=scratch / "none", device="cpu"))
    count_operations(plan.spec, next(plan.training.batches(0)))  # here, and not in each child
    return path


def train_here(experiment: Path, output: Path, **options: Any) -> None:
    request = Request(output=output, resume=True, device="cpu", **options)
    train(load_experiment(str(experiment)), request)


class Child:
    def __init__(self, work: Callable[[], object], log: Path) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        self.log = log
        self.pid = os.fork()
        if not self.pid:
            self._live(work)
        self._ended = os.pidfd_open(self.pid)
        self.code: int | None = None

    def _live(self, work: Callable[[], object]) -> None:
        code = 1
        try:
            log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
            work()
            code = 0
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)  # noqa: T201
            code = error.exit_code
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)

    def wait(self, seconds: float) -> bool:
        """Whether it has ended after at most so long; ``code`` is negative after a signal."""
        if self.code is not None:
            return True
        if not select.select([self._ended], [], [], max(0.0, seconds))[0]:
            return False
        os.close(self._ended)
        self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return True

    def send(self, number: int) -> None:
        signal.pidfd_send_signal(self._ended, number)

    def end(self, seconds: float = HANG) -> int:
        if not self.wait(seconds):
            self.send(signal.SIGKILL)
            self.wait(10)
            raise AssertionError(f"a training hangs; its last words: {self.words()}")
        assert self.code is not None
        return self.code

    def words(self) -> str:
        return self.log.read_text(errors="replace")[-2000:] if self.log.exists() else ""


def finish(experiment: Path, output: Path) -> None:
    child = Child(lambda: train_here(experiment, output), output.parent / "log.txt")
    assert child.end() == 0, f"a training failed: {child.words()}"


def prepare(scratch: Path, epochs: int) -> tuple[Path, str, float]:
    """An experiment, the fingerprint of a run that nothing disturbs, and how long that run took."""
    experiment = make_experiment(scratch, epochs)
    if not Path(os.environ["VITCLI_CACHE"]).exists():
        finish(experiment, scratch / "first")  # decodes the data, compiles the kernels
    began = time.monotonic()
    finish(experiment, scratch / "calm")
    return experiment, fingerprint(scratch / "calm"), time.monotonic() - began


def answer_of(work: Callable[[], Any], scratch: Path) -> Any:
    answer = scratch / "answer.json"
    child = Child(lambda: answer.write_text(json.dumps(work())), scratch / "log.txt")
    assert child.end() == 0, child.words()
    return json.loads(answer.read_text())


def fingerprint(folder: Path) -> str:
    """A hash of all that must not depend on what happened: tensors, metrics, predictions."""
    run, digest = RunDir(folder), hashlib.sha256()
    checkpoint = latest_checkpoint(run.checkpoints, lambda _: None)
    assert checkpoint is not None
    for name, tensor in sorted(checkpoint.tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().numpy().tobytes())
    for record in read_record(run).metrics:
        timeless = {name: value for name, value in record.items() if name not in TIMELESS}
        digest.update(json.dumps(timeless).encode())
    digest.update((folder / "predictions.npz").read_bytes())
    assert read_record(run).status == "finished"
    assert read_record(run).result["exact"] is True
    return digest.hexdigest()


def newest(folder: Path) -> int:
    """The step of the newest whole checkpoint, 0 where none was ever saved."""
    checkpoint = latest_checkpoint(RunDir(folder).checkpoints, lambda _: None)
    return checkpoint.step if checkpoint else 0


class Tally:
    def __init__(self, **counts: int) -> None:
        self.counts = counts
        self.failures: list[str] = []

    def check(self, name: str, holds: bool, what: str) -> None:
        if not holds:
            self.counts[name] += 1
            self.failures.append(f"{name}: {what}")

    def unloadable(self, folder: Path, at_least: int, what: str) -> int:
        """The newest whole checkpoint's step; counts a run that went back or cannot be read."""
        try:
            step = newest(folder)
        except InputError as error:
            self.check("unloadable", False, f"{what}: {error}")
            return 0
        self.check("lost", step >= at_least, f"{what}: step {at_least} was there, now {step}")
        return step


def main(name: str, campaign: Campaign, count: int) -> None:
    """Run a campaign as a program: one JSON document; exit 1 where something was lost."""
    parser = argparse.ArgumentParser(prog=f"python -m tests.faults.{name}")
    parser.add_argument("--count", type=int, default=count)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31))
    parser.add_argument("--keep", type=Path, help="a folder in which what was made stays")
    parser.add_argument("--record", action="store_true", help=f"put the row into {FILE.name}")
    options = parser.parse_args()
    scratch = options.keep or Path(tempfile.mkdtemp())
    os.environ["VITCLI_CACHE"] = str(scratch / "cache")
    began = time.monotonic()
    try:
        found = campaign(scratch, options.count, options.seed)
    finally:
        if not options.keep:
            shutil.rmtree(scratch, ignore_errors=True)
    failures = found.pop("failures")
    found = {"campaign": name, **found, "seed": options.seed}
    found["seconds"] = round(time.monotonic() - began, 1)
    print(json.dumps(found, indent=1))  # noqa: T201
    if options.record:
        keep(found)
    if failures:
        again = f"python -m tests.faults.{name} --count {options.count} --seed {options.seed}"
        raise SystemExit("\n".join([*failures[:20], f"again: {again}"]))
