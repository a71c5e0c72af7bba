"""Ray among the engines. No Ray."""

from vitcli.runner.engines.engine import Engine

ROW = Engine(
    about="-j drivers on a Ray cluster",
    logs=r"ray\d+\.txt",
    train="vitcli.plugins.ray.cluster:train_on_ray",
    package="ray",
    takes_gpus=True,
)
