"""Checks of this machine for `vitcli doctor`; the text contains no user name or host name."""

import getpass
import os
import platform
import shutil
import tempfile
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from vitcli.core.spec import DATA_SETS
from vitcli.runner.run.folder import RUNS
from vitcli.runner.text import quantity
from vitcli.version import __version__

PACKAGES = (
    "torch",
    "torchvision",
    "numpy",
    "scipy",
    "pydantic",
    "PyYAML",
    "typer",
    "rich",
    "safetensors",
    "filelock",
    "platformdirs",
    "Pillow",
    "matplotlib",
    "tensorboard",
)
OLDEST_TORCH = (2, 11)
ENOUGH_BYTES = 200 * 2**20
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
COMPILERS = ("g++", "clang++", "c++")


@dataclass
class Report:
    """Facts by section. ``problems`` prevent training, ``notes`` do not; both say what to type."""

    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return {
            "ok": not self.problems,
            "problems": self.problems,
            "notes": self.notes,
            **self.facts,
        }


def examine() -> Report:
    """Run all checks. A failed check is reported, not raised."""
    report = Report()
    _versions(report)
    if not report.problems:
        _devices(report)
        _products(report)
    _memory(report)
    _folders(report)
    _compiler(report)
    if not report.problems:
        _data(report)
    return report


def hide_owner(text: object) -> str:
    """Return a path with ~ for the home folder, USER for the user name and HOST for the host."""
    path, home = str(text), os.path.expanduser("~")
    homes = {home, os.path.realpath(home)} - {"/"}
    for home in sorted(homes, key=len, reverse=True):
        if path == home or path.startswith(home + "/"):
            path = "~" + path.removeprefix(home)
    names = {_user(): "USER", platform.node(): "HOST"}
    return "/".join(names.get(part, part) if part else part for part in path.split("/"))


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container without an entry for its user
        return ""


def _versions(report: Report) -> None:
    found = {"vitcli": __version__, "python": platform.python_version()}
    found["system"] = f"{platform.system()} {platform.release()} {platform.machine()}"
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "missing"
            report.problems.append(f"{name} is not installed; type: pip install {name}")
    report.facts["versions"] = found
    if found["torch"] == "missing":
        return
    try:
        import torch
        import torchvision  # noqa: F401  (this fails where it was built for another torch)
    except Exception as error:
        reason = hide_owner(str(error).partition("\n")[0])
        report.problems.append(
            f"torch cannot be imported ({reason});"
            " type: pip install --force-reinstall torch torchvision"
        )
        return
    found["torch"] = torch.__version__
    release = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if release < OLDEST_TORCH:
        report.problems.append(
            f"torch {torch.__version__} is older than 2.11; type: pip install -U torch torchvision"
        )


def _devices(report: Report) -> None:
    import torch

    from vitcli.runner.machine.device import cpu_name, is_fast_in_bf16, pick_device

    chosen = pick_device("auto")
    gpus = []
    for index in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(index)
        gpus.append(f"cuda:{index} {about.name}, {gibibytes(about.total_memory)}")
    report.facts["devices"] = {
        "cpu": cpu_name(),
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "cpu capability": torch.backends.cpu.get_cpu_capability(),
        "gpus": gpus,
        "cuda": torch.version.cuda,
        "mps": torch.backends.mps.is_available(),
        "auto": str(chosen),
        "auto precision": "bf16" if is_fast_in_bf16(chosen) else "fp32",
    }


def _products(report: Report) -> None:
    """Measure matrix products on the CPU, and note what slows a training down."""
    from vitcli.runner.limits import cpu_quota, usable_cores
    from vitcli.runner.machine.processor import computes_bf16, this_processor
    from vitcli.runner.machine.products import describe_slowdown, measure_products

    products, quota = measure_products(), cpu_quota()
    usable, cores = usable_cores(quota), os.cpu_count() or 1
    report.facts["products"] = {"threads": products.threads, "usable cores": usable} | {
        f"{precision} {rows}x{inner} by {inner}x{columns}_flops": rate
        for (precision, (rows, inner, columns)), rate in products.rates.items()
    }
    for name in THREAD_VARIABLES:
        value = os.environ.get(name, "")
        if value.isdecimal() and 0 < int(value) < usable:
            report.notes.append(
                f"{name}={value} lets torch use {value} of {quantity(usable, 'core')};"
                f" type: unset {name}"
            )
    if quota is not None and quota < cores:
        report.notes.append(
            f"a CPU quota allows this container {quota:.3g} of {quantity(cores, 'core')}; raise it"
            f" (docker run --cpus {cores}), or type: export OMP_NUM_THREADS={usable}"
        )
    if products.bf16_slowdown > 1 and not computes_bf16(this_processor()):
        slowdown = describe_slowdown(products.bf16_slowdown)
        report.notes.append(f"{slowdown}; train with --precision auto or fp32")


def _memory(report: Report) -> None:
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        total = None
    facts: dict[str, Any] = {"total_bytes": total}
    if "devices" in report.facts:
        from vitcli.runner.data.arrays import available_memory

        facts["available_bytes"] = available_memory()
    report.facts["memory"] = facts


def _folders(report: Report) -> None:
    from vitcli.runner.data.find import CACHE_VARIABLE, cache_root

    places = {"runs": RUNS.resolve(), "cache": cache_root()}
    for name, folder in places.items():
        existing = nearest_existing(folder)
        writable, free = can_write(existing), shutil.disk_usage(existing).free
        report.facts[name] = {
            "path": hide_owner(folder),
            "writable": writable,
            "free_bytes": free,
        }
        where = "change to a folder of your own" if name == "runs" else f"set {CACHE_VARIABLE}"
        if not writable:
            message = f"the {name} folder {hide_owner(folder)} cannot be written; {where}"
            (report.problems if name == "runs" else report.notes).append(message)
        elif free < ENOUGH_BYTES:
            message = f"only {gibibytes(free)} are free for {hide_owner(folder)}; free some space"
            (report.problems if name == "runs" else report.notes).append(message)


def nearest_existing(folder: Path) -> Path:
    return next(place for place in (folder, *folder.absolute().parents) if os.path.exists(place))


def can_write(folder: Path) -> bool:
    """Return whether a file can be written; permission bits do not show a read-only disk."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"vitcli")
            file.flush()
    except OSError:
        return False
    return True


def _compiler(report: Report) -> None:
    names = (os.environ.get("CXX", ""), *COMPILERS)
    found = next(filter(None, (shutil.which(name) for name in names if name)), None)
    report.facts["compiler"] = {"c++": hide_owner(found) if found else None}
    report.facts["compiler"]["kernels"] = _kernels(report)
    if found is None:
        report.notes.append(
            "no C++ compiler, so torch.compile has no effect on the CPU; type: sudo apt install g++"
        )


def _kernels(report: Report) -> str:
    """Return the precisions in which ``train.kernels=auto`` selects native kernels on this CPU."""
    if report.problems:
        return "unknown"
    from vitcli.runner.machine.device import DTYPES
    from vitcli.runner.machine.kernels import NoKernelsError, find_compiler, native_backend_of
    from vitcli.runner.machine.processor import cpu_kind

    kind = cpu_kind()
    names = [name for name, dtype in DTYPES.items() if native_backend_of(kind, dtype)]
    if not names:
        return f"torch (no native kernels for this system: {platform.system()}, {kind})"
    try:
        find_compiler()
    except NoKernelsError as error:
        report.notes.append(
            f"{error}, so training on this CPU is slower; type: sudo apt install gcc"
        )
        return "torch"
    return f"native in {' and '.join(names)}"


def _data(report: Report) -> None:
    from vitcli.runner.data.find import DATA_VARIABLE, is_offline
    from vitcli.runner.data.load import data_status

    chosen = os.environ.get(DATA_VARIABLE)
    facts: dict[str, Any] = {"offline": is_offline(False)}
    facts[DATA_VARIABLE] = hide_owner(Path(os.path.expanduser(chosen))) if chosen else None
    on_disk = False
    for name in DATA_SETS:
        try:
            status = data_status(name)
        except OSError as error:  # no permission to list a folder
            facts[name] = f"unknown: {error.strerror}"
            continue
        facts[name] = hide_owner(status.place) if status.place else status.kind
        on_disk = on_disk or status.place is not None
    report.facts["data"] = facts
    if not on_disk:
        report.notes.append(
            "only the generated data sets are on this machine; type: vitcli data get cifar10"
        )


def gibibytes(count: int) -> str:
    """Return a number of bytes in GiB as text."""
    return f"{count / 2**30:.1f} GiB"
