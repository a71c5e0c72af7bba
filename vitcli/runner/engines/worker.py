"""A worker process: it trains the trials that it is given, one after the other.

``python -m vitcli.runner.engines.worker ROOT`` reads one line of JSON per trial from stdin and
writes one line of JSON per event to stdout. It ends when stdin ends, so it never outlives the
process that feeds it.
"""

import contextlib
import io
import json
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitcli.core.spec import AugmentSpec, DataSpec
from vitcli.runner.engines.drivers import PLAN, read_plan
from vitcli.runner.errors import (
    ConfigError,
    DivergedError,
    InputError,
    InUseError,
    StoppedError,
    UserError,
)
from vitcli.runner.experiment import own_code
from vitcli.runner.experiment.config import Experiment, parse_experiment
from vitcli.runner.experiment.yaml_text import Document
from vitcli.runner.run.folder import RunDir
from vitcli.runner.run.record import describe_other_images, headline_key, read_record
from vitcli.runner.train.events import Ended, Event, Message, TrialEvent, to_line
from vitcli.runner.train.signals import StopFlag

if TYPE_CHECKING:
    from vitcli.runner.train.prepare import Request

GRACE_SECONDS = 30.0
"""Time that a trial may take to save its checkpoint after the driver has ended."""
CORES_VARIABLE = "VITCLI_WORKER_CORES"
"""Variable with the cores of this process, such as ``2,3``; empty for all cores."""
Send = Callable[[Event], None]


def run_trial(
    root: Path,
    folder: str,
    *,
    send: Send,
    load: "SharedData",
    request: Mapping[str, Any] | None = None,
) -> None:
    """Train or continue one trial of the plan, unless it has a result. Every end is an event.

    If vitcli caused a failure, the traceback goes to stderr. If another process trains the trial,
    the exit code of the failure is that of ``InUseError``.
    """
    from vitcli.runner.run.checkpoint import keep_weights
    from vitcli.runner.train.train import train

    plan = read_plan(root) | dict(request or {})
    entry = plan["trials"][folder]
    if reason := divergence(RunDir(root / folder), entry):
        send(Ended(state="diverged", reason=reason))
        return
    code = own_code.stored_code(entry["config"])  # the driver has named it
    own_code.load_copies({k: code[k] for k in own_code.missing_code(code)}, root / own_code.FOLDER)
    spec = parse_experiment(entry["config"], Document("", PLAN), copies=root / own_code.FOLDER)
    experiment = Experiment(plan["study"], spec, root / PLAN, variant=entry["variant"])
    try:
        how = read_request(plan, root / folder)
        how = replace(how, on_message=lambda text: send(Message(text=text)))
        record = train(experiment, replace(how, on_event=send, load=load))
        run = record.folder
        with contextlib.suppress(InUseError), run.lock():
            keep_weights(run.checkpoints)
        score = record.result[headline_key(record.result, spec.task.row.headline.name)]
        send(Ended(state="finished", score=score))
    except DivergedError as error:
        send(Ended(state="diverged", reason=str(error)))
    except StoppedError as error:
        send(Ended(state="interrupted", reason=str(error)))
    except UserError as error:
        stage = "data" if load.has_failed else "training"
        # Another process may have begun the trial after this one had looked.
        is_used = RunDir(root / folder).is_in_use()
        exit_code = InUseError.exit_code if is_used else error.exit_code
        send(Ended(state="failed", reason=str(error), exit=exit_code, stage=stage))
    except BaseException as error:
        if reason := own_code.locate_in_own_code(error):
            send(Ended(state="failed", reason=reason, exit=ConfigError.exit_code))
            return
        if not isinstance(error, Exception):
            raise
        traceback.print_exc()
        send(Ended(state="failed", reason=f"{type(error).__name__}: {error}", exit=1))


def read_request(plan: Mapping[str, Any], output: Path) -> "Request":
    from vitcli.runner.train.prepare import Request

    return Request(
        device=plan["device"],
        data_dir=Path(plan["data_dir"]) if plan["data_dir"] else None,
        offline=plan["offline"],
        output=output,
        resume=True,
        without_test=plan.get("without_test", False),
        command=plan["command"],
        track=tuple(plan.get("track", ())),
    )


def divergence(run: RunDir, entry: Mapping[str, Any]) -> str:
    """Return the reason of a divergence of this trial, which another driver found; else ''."""
    record = read_record(run)
    is_same = record.config_hash == entry["config_hash"]
    return record.reason if record.state == "diverged" and is_same else ""


class SharedData:
    """A ``load_data`` that keeps its tensors for further trials of images with a hash."""

    def __init__(self, expected: str | None = None) -> None:
        self._expected = expected
        self._key: tuple[DataSpec, int] | None = None
        self._data: Any = None
        self.has_failed = False

    def __call__(self, spec: DataSpec, *, seed: int, **options: Any) -> Any:
        from vitcli.runner.data.load import load_data

        # Augmentation does not change what is read, and the seed does so with folds only.
        key = spec.replace(augment=AugmentSpec()), seed if spec.folds else 0
        if key != self._key:
            self._key, self._data = None, None  # free the old data first
            try:
                data = load_data(key[0], seed=seed, **options)
                if problem := describe_other_images(self._expected, data):
                    raise InputError(
                        f"finished trials were trained on {problem}; point --data-dir at the images"
                        " of those trials, or train all trials again with --rerun"
                    )
                self._key, self._data = key, data
            except UserError:
                self.has_failed = True
                raise
        return self._data


def read_jobs(lines: Iterable[str], jobs: "queue.Queue[dict[str, Any] | None]") -> None:
    """Read jobs from stdin. At the end of stdin, stop the running trial as the driver would."""
    for line in lines:
        jobs.put(json.loads(line))
    is_busy = jobs.unfinished_tasks > 0  # true also for a job that no trial has begun
    jobs.put(None)
    if is_busy:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE_SECONDS)
        os._exit(128 + signal.SIGTERM)


def jobs_from_stdin() -> Iterator[dict[str, Any]]:
    jobs: queue.Queue[dict[str, Any] | None] = queue.Queue()
    # Python's exit() closes sys.stdin, and would wait for the thread that reads it.
    lines, sys.stdin = sys.stdin, io.StringIO()
    threading.Thread(target=read_jobs, args=(lines, jobs), daemon=True).start()
    while (job := jobs.get()) is not None:
        yield job
        jobs.task_done()


def main(root: Path) -> None:
    StopFlag.is_patient = True  # a scheduler and the driver may both send a signal
    if cores := os.environ.get(CORES_VARIABLE):  # torch's threads, which start later, inherit them
        with contextlib.suppress(OSError):  # the system took a core away: training is only slower
            os.sched_setaffinity(0, map(int, cores.split(",")))
    plan = read_plan(root)
    # Only events go to stdout, so the prints of libraries go to stderr.
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    limit_threads(plan["threads"])
    load = SharedData(plan.get("data_hash"))
    for job in jobs_from_stdin():
        folder = job["folder"]

        def send(event: Event, folder: str = folder) -> None:
            # If the driver has ended, stdin has ended too, and read_jobs stops the trial.
            with contextlib.suppress(OSError):
                out.write(to_line(TrialEvent(folder, event)))

        run_trial(root, folder, send=send, load=load, request=job.get("request"))


def limit_threads(count: int) -> None:
    import torch

    torch.set_num_threads(count)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
