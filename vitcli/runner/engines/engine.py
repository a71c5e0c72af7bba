"""The table of engines: where trials are trained. No torch and no pydantic."""

from dataclasses import dataclass

from vitcli.plugin import Registry, Target


@dataclass(frozen=True, kw_only=True)
class Engine:
    """Where the trials of a folder are trained."""

    about: str
    logs: str
    """Regular expression: the names of its files in the folder ``logs``."""
    train: Target | None = None
    """Takes the folder, CPU threads of a trial, ``Options`` and ``--gpus``; returns whether the
    trials are trained now. None trains them in this process, the only driver."""
    package: str = ""
    takes_gpus: bool = False


LOCAL = "local"
ENGINES = Registry[Engine]("engine")
ENGINES |= {LOCAL: Engine(about="this machine", logs=r"worker\d+(\.\d+)?\.log|driver\d+\.lock")}
