"""``--engine slurm``: a script for sbatch, whose jobs drive one study, search or comparison."""

import shlex
from pathlib import Path

from vitcli.cli.console import emit_exactly, say
from vitcli.cli.engines import driver_words, make_logs
from vitcli.runner.engines.local import python_command
from vitcli.runner.study.plan import Options

SCRIPT = """#!/bin/sh
#SBATCH --job-name=vitcli-{name}
#SBATCH --array=1-{count}
#SBATCH --cpus-per-task={cores}
#SBATCH --output={logs}/slurm-%A_%a.txt
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR1@90
cd {folder} || exit
{command} &
# 90 seconds before the time limit: save a checkpoint, and continue in another job.
trap 'kill -TERM $!; wait $!
exec scontrol requeue "${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID"' USR1
wait $!
"""


def print_script(root: Path, threads: int, options: Options, gpus: None) -> bool:
    text = SCRIPT.format(
        name=root.resolve().name,
        count=options.jobs,
        cores=threads,
        logs=shlex.quote(str(make_logs(root))),
        folder=shlex.quote(str(Path.cwd())),
        command=shlex.join(python_command("-m", "vitcli", *driver_words(root))),
    )
    emit_exactly(text, nl=False)
    say("submit  pipe this script into sbatch, with its options: | sbatch --time 2h --gpus 1")
    say(f"next    vitcli runs watch {shlex.quote(str(root))}")
    return False
