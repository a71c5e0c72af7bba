"""Trials as jobs of Slurm, in arrays that submitit submits. Needs submitit and Slurm's programs.

A job outlives the driver. The number of each job is noted in the study's folder, so that the next
driver waits for it instead of submitting the trial again. Slurm is asked only which jobs it still
has (``squeue``): no accounting database is needed.
"""

import getpass
import json
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vitcli.runner.engines.engine import MAX_ATTEMPTS, Job, Setup
from vitcli.runner.engines.node import NodeRun, NodeTrial
from vitcli.runner.engines.remote import RemoteEngine, Ticket
from vitcli.runner.errors import ConfigError, ResourceError
from vitcli.runner.files import commit_json
from vitcli.runner.text import one_line, quantity
from vitcli.runner.train.events import Ended, Message, TrialEvent

FOLDER = "logs/slurm"
"""Folder below that of the study with sbatch scripts, output of jobs and notes about jobs."""
WARNING_SECONDS = 90
"""Time before the end of a job at which Slurm warns it, so that its trial saves a checkpoint."""
MAX_ARRAY = 1000
"""Most trials in one job array; 1001 is Slurm's default limit."""
DEFAULT_MINUTES = 60
MANY_TIMEOUTS = 1000
"""Number of times that a job whose time is up is queued again."""


def require_slurm() -> None:
    """Check that submitit and Slurm are installed."""
    if find_spec("submitit") is None:
        raise ConfigError("--engine slurm needs the package submitit; type: pip install submitit")
    if shutil.which("sbatch") is None:
        raise ConfigError(
            "--engine slurm needs Slurm's program sbatch; type the command on a machine of the"
            " cluster"
        )


class SlurmTrial:
    """What a job calls. submitit calls ``checkpoint`` when the job's time is up or preempted."""

    def __init__(self, trial: NodeTrial) -> None:
        self.trial = trial
        self.run: NodeRun | None = None
        self.first_step = 0

    def __call__(self) -> str:
        """Train the trial on this machine; return why it cannot."""
        if problem := self.trial.place.find_problem():
            return problem
        self.first_step = self.trial.last_step()
        self.run = run = self.trial.start()
        signal.signal(signal.SIGTERM, lambda *_: run.stop())  # scancel
        run.wait()
        return ""

    def checkpoint(self) -> Any:
        """Save the trial's checkpoint; return what the job calls when it is queued again.

        A job without progress counts as an attempt. After the last one the trial has failed.
        """
        from submitit.helpers import DelayedSubmission

        if self.run:
            self.run.stop()
            self.run.wait()
        if self.trial.last_step() > self.first_step:
            return DelayedSubmission(SlurmTrial(self.trial))
        job = self.trial.job
        if job.attempt < MAX_ATTEMPTS:
            again = replace(self.trial, job=replace(job, attempt=job.attempt + 1))
            return DelayedSubmission(SlurmTrial(again))
        reason = f"{job.attempt} jobs ended without a step; choose a longer --time-limit"
        self.trial.write(Ended(state="failed", reason=reason))
        return None  # submitit then ends the job


class SlurmEngine(RemoteEngine):
    """Submits trials as arrays of jobs, and finds the jobs of an earlier driver again."""

    poll_seconds = 1.0
    outlives_driver = True

    def __init__(self, root: Path, jobs: Sequence[Job], setup: Setup) -> None:
        super().__init__(root, jobs, setup)
        self.folder = self.root / FOLDER
        self._warned = False

    def open(self) -> Iterator[TrialEvent]:
        """Wait for jobs of an earlier driver instead of submitting their trials again."""
        noted = {job.folder: self._read_note(job) for job in self.waiting}
        queue = self.queue() if any(noted.values()) else set()
        for job in list(self.waiting):
            ticket = noted[job.folder]
            if ticket and (queue is None or ticket.id in queue):
                self.waiting.remove(job)
                self.active[job.folder] = ticket
        if self.active:
            number = quantity(len(self.active), "trial")
            text = f"{number} submitted earlier; Slurm still has the jobs, vitcli waits for them"
            yield TrialEvent("", Message(text=text))

    def queue(self) -> set[str] | None:
        """Return the numbers of this user's jobs that Slurm has; None if Slurm does not answer."""
        words = ["squeue", "--noheader", "--array", "--format=%i", "--user", getpass.getuser()]
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
        except (OSError, subprocess.SubprocessError):
            return None
        return set(done.stdout.split())

    def submit(self, tickets: Sequence[Ticket]) -> Iterator[TrialEvent]:
        """Submit trials as job arrays; a single trial as a job."""
        for begin in range(0, len(tickets), MAX_ARRAY):
            part = tickets[begin : begin + MAX_ARRAY]
            executor = self.executor()
            try:
                with executor.batch():
                    jobs = [executor.submit(SlurmTrial(self.trial(ticket))) for ticket in part]
            except Exception as error:  # submitit has no class of its own for sbatch's refusal
                raise ResourceError(f"sbatch refuses the jobs: {last_line(error)}") from error
            for ticket, job in zip(part, jobs, strict=True):
                ticket.id = str(job.job_id)
                self._write_note(ticket)
            number = ticket.id.partition("_")[0]
            script = self.folder / f"{number}_submission.sh"
            text = f"Slurm job {number}: {quantity(len(part), 'trial')}; script {script}"
            yield TrialEvent("", Message(text=text))

    def executor(self) -> Any:
        """Return submitit's executor with the parameters of every job."""
        import submitit

        executor = submitit.AutoExecutor(
            folder=self.folder, cluster="slurm", slurm_max_num_timeout=MANY_TIMEOUTS
        )
        executor.update_parameters(**self.parameters())
        return executor

    def parameters(self) -> dict[str, Any]:
        """Return submitit's parameters of every job."""
        cluster = self.cluster
        minutes, gpus = cluster.minutes or DEFAULT_MINUTES, cluster.gpus or 0
        own = {"requeue": True, **cluster.sbatch}
        found: dict[str, Any] = {
            "name": f"vitcli-{self.root.name}",
            "timeout_min": minutes,
            "cpus_per_task": cluster.cpus or self.setup.threads,
            "tasks_per_node": 1,
            "slurm_signal_delay_s": min(WARNING_SECONDS, 60 * minutes // 4),
            "slurm_array_parallelism": self.setup.count or MAX_ARRAY,
            "slurm_additional_parameters": own,
        }
        found |= {"slurm_partition": cluster.partition} if cluster.partition else {}
        found |= {"slurm_gpus_per_node": int(gpus)} if gpus else {}
        found |= {"mem_gb": cluster.memory} if cluster.memory else {}
        return found

    def gone(self, tickets: Sequence[Ticket]) -> dict[str, str]:
        """Return the trials whose jobs Slurm does not have any more."""
        queue = self.queue()
        if queue is None:
            return {}
        return {
            ticket.job.folder: f"job {ticket.id} ended without a result; see {self.log_of(ticket)}"
            for ticket in tickets
            if ticket.id not in queue
        }

    def log_of(self, ticket: Ticket) -> Path:
        return self.folder / f"{ticket.id}_0_log.err"

    def cancel(self, tickets: Sequence[Ticket]) -> None:
        """Cancel waiting jobs. Slurm sends SIGTERM to running ones: they save a checkpoint."""
        ids = [ticket.id for ticket in tickets if ticket.id]
        if not ids:  # without numbers, scancel takes all waiting jobs of the user
            return
        for words in (["--state=PENDING"], ["--signal=TERM"]):
            subprocess.run(["scancel", *words, *ids], capture_output=True, check=False)

    def stop(self, *, leave: bool = False) -> None:
        """Cancel the jobs; with ``leave``, Slurm keeps them."""
        if leave:
            self.active.clear()
        super().stop()

    def forget(self, ticket: Ticket) -> None:
        self._note(ticket.job.folder).unlink(missing_ok=True)

    def _note(self, folder: str) -> Path:
        return self.folder / f"{folder.replace('/', '.')}.json"

    def _write_note(self, ticket: Ticket) -> None:
        content = {"id": ticket.id, "key": ticket.key, "attempt": ticket.job.attempt}
        commit_json(self._note(ticket.job.folder), content)

    def _read_note(self, job: Job) -> Ticket | None:
        try:
            note = json.loads(self._note(job.folder).read_text())
            known = Job(job.folder, int(note["attempt"]))
            return Ticket(known, str(note["key"]), str(note["id"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None


def last_line(error: BaseException) -> str:
    return one_line((str(error).strip().splitlines() or [type(error).__name__])[-1], 300)
