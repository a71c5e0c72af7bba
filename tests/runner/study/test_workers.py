"""One worker process, without a study."""

import queue
import signal

from tests.patience import HANG
from vitcli.runner.study import workers as engine
from vitcli.runner.study.workers import Worker


def test_a_process_that_closed_its_output_but_runs_on_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "EXIT_TIMEOUT", 0.2)
    silent = ("-c", "import os, time; os.close(1); time.sleep(600)")
    monkeypatch.setattr(engine, "PROGRAM", silent)
    inbox: queue.Queue = queue.Queue()
    worker = Worker(tmp_path, 0, 1, inbox)
    assert inbox.get(timeout=HANG) == (worker, None), "its output has ended"
    assert worker.exit_reason() == "its process hung and was killed"
    assert worker.process.returncode == -signal.SIGKILL
