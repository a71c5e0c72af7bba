"""Slurm among the engines."""

from vitcli.runner.engines.engine import Engine

ROW = Engine(
    about="print a script for sbatch with -j drivers",
    logs=r"slurm-\d+_\d+\.txt",
    train="vitcli.plugins.slurm.script:print_script",
)
