"""The first training step comes early: nothing is imported that only later work needs."""

import subprocess
import sys

from tests.patience import HANG

LATE = ("torch._dynamo", "torch.utils.flop_counter", "tensorboard", "matplotlib", "scipy")
TRAIN = f"""
import sys
from vitcli.runner.experiment.config import load_experiment
from vitcli.runner.train import trainer
from vitcli.runner.train.events import Progress
from vitcli.runner.train.start import Request, start

trainer.REPORT_SECONDS = 0  # report after the first step

def stop(event):
    if isinstance(event, Progress):
        sys.exit(f"step {{event.step}}: {{[name for name in {LATE} if name in sys.modules]}}")

start(load_experiment(sys.argv[1]), Request(), on_event=stop)
"""


def test_the_first_step_imports_nothing_that_only_later_work_needs(tiny):
    command = [sys.executable, "-c", TRAIN, str(tiny)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG)
    assert done.stderr == "step 1: []\n"
