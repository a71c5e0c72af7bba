"""Checks of this machine for `vitcli doctor`; the report contains no user name or host name."""

import contextlib
import getpass
import os
import platform
import shutil
import tempfile
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from vitcli.runner.report.report import Report, facts_of, hidden
from vitcli.runner.run.folder import RUNS
from vitcli.runner.text import quantity, size_text
from vitcli.version import __version__

PACKAGES = (
    *("torch", "torchvision", "numpy", "scipy", "pydantic", "PyYAML", "typer", "rich"),
    *("safetensors", "filelock", "platformdirs", "Pillow", "matplotlib", "tensorboard"),
)
OLDEST_TORCH = (2, 11)
ENOUGH_BYTES = 200 * 2**20
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
COMPILERS = ("g++", "clang++", "c++")


@dataclass
class Checks:
    """``problems`` prevent training, ``notes`` do not; both say what to type."""

    facts: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def report(self) -> Report:
        return Report(
            facts=[*hidden(ok=not self.problems, problems=self.problems), *facts_of(**self.facts)],
            notes=[f"note: {note}" for note in self.notes],
            next=() if self.problems else ["vitcli train"],
        )


def examine() -> Checks:
    """Run all checks. A failed check is reported, not raised."""
    checks = Checks()
    _versions(checks)
    if not checks.problems:
        _devices(checks)
        _slowdowns(checks)
    _memory(checks)
    _folders(checks)
    _compiler(checks)
    return checks


def hide_owner(text: object) -> str:
    """Return a path with ~ for the home folder, USER for the user name and HOST for the host."""
    path, home = str(text), os.path.expanduser("~")
    homes = {home, os.path.realpath(home)} - {"/"}
    for home in sorted(homes, key=len, reverse=True):
        if path == home or path.startswith(home + "/"):
            path = "~" + path.removeprefix(home)
    names = {}
    with contextlib.suppress(KeyError, OSError):  # a container without an entry for its user
        names[getpass.getuser()] = "USER"
    names[platform.node()] = "HOST"
    return "/".join(names.get(part, part) if part else part for part in path.split("/"))


def _versions(checks: Checks) -> None:
    found = {"vitcli": __version__, "python": platform.python_version()}
    found["system"] = f"{platform.system()} {platform.release()} {platform.machine()}"
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "missing"
            checks.problems.append(f"{name} is not installed; type: pip install {name}")
    checks.facts |= found
    if found["torch"] == "missing":
        return
    try:
        import torch
        import torchvision  # noqa: F401  (this fails where it was built for another torch)
    except Exception as error:
        reason = hide_owner(str(error).partition("\n")[0])
        checks.problems.append(
            f"torch cannot be imported ({reason});"
            " type: pip install --force-reinstall torch torchvision"
        )
        return
    checks.facts["torch"] = torch.__version__
    release = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if release < OLDEST_TORCH:
        checks.problems.append(
            f"torch {torch.__version__} is older than 2.11; type: pip install -U torch torchvision"
        )


def _devices(checks: Checks) -> None:
    import torch

    from vitcli.runner.machine.device import cpu_name, is_fast_in_bf16, pick_device

    chosen = pick_device("auto")
    gpus = []
    for index in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(index)
        gpus.append(f"cuda:{index} {about.name}, {size_text(about.total_memory)}")
    checks.facts |= {
        "cpu": cpu_name(),
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "gpus": gpus,
        "cuda": torch.version.cuda,
        "mps": torch.backends.mps.is_available(),
        "auto": str(chosen),
        "auto_precision": "bf16" if is_fast_in_bf16(chosen) else "fp32",
    }


def _slowdowns(checks: Checks) -> None:
    from vitcli.runner.limits import cpu_quota, usable_cores
    from vitcli.runner.machine.device import EMULATED, computes_bf16, this_processor

    quota = cpu_quota()
    usable, cores = usable_cores(quota), os.cpu_count() or 1
    checks.facts["usable_cores"] = usable
    for name in THREAD_VARIABLES:
        value = os.environ.get(name, "")
        if value.isdecimal() and 0 < int(value) < usable:
            checks.notes.append(
                f"{name}={value} lets torch use {value} of {quantity(usable, 'core')};"
                f" type: unset {name}"
            )
    if quota is not None and quota < cores:
        checks.notes.append(
            f"a CPU quota allows this container {quota:.3g} of {quantity(cores, 'core')}; raise it"
            f" (docker run --cpus {cores}), or type: export OMP_NUM_THREADS={usable}"
        )
    if not computes_bf16(this_processor()):
        checks.notes.append(f"{EMULATED}; train with --precision auto or fp32")


def _memory(checks: Checks) -> None:
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        total = None
    checks.facts["memory_bytes"] = total
    if "threads" in checks.facts:
        from vitcli.runner.data.arrays import available_memory

        checks.facts["available_memory_bytes"] = available_memory()


def _folders(checks: Checks) -> None:
    from vitcli.runner.data.find import CACHE_VARIABLE, DATA_VARIABLE, cache_root, is_offline

    chosen = os.environ.get(DATA_VARIABLE)
    data = hide_owner(Path(os.path.expanduser(chosen))) if chosen else None
    checks.facts |= {"offline": is_offline(False), DATA_VARIABLE: data}
    temporary = Path(tempfile.gettempdir())
    places = {"runs": RUNS.resolve(), "cache": cache_root(), "temporary": temporary}
    advice = {"runs": "change to a folder of your own", "cache": f"set {CACHE_VARIABLE}"}
    for name, folder in places.items():
        above = folder.absolute().parents
        existing = next(place for place in (folder, *above) if os.path.exists(place))
        writable, free = can_write(existing), shutil.disk_usage(existing).free
        checks.facts |= {
            f"{name}_folder": hide_owner(folder),
            f"{name}_writable": writable,
            f"{name}_free_bytes": free,
        }
        found = checks.problems if name == "runs" else checks.notes
        if not writable:
            where = advice.get(name, "set TMPDIR")
            found.append(f"the {name} folder {hide_owner(folder)} cannot be written; {where}")
        elif free < ENOUGH_BYTES:
            found.append(
                f"only {size_text(free)} are free for {hide_owner(folder)}; free some space"
            )


def can_write(folder: Path) -> bool:
    """Return whether a file can be written; permission bits do not show a read-only disk."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"vitcli")
            file.flush()
    except OSError:
        return False
    return True


def _compiler(checks: Checks) -> None:
    names = (os.environ.get("CXX", ""), *COMPILERS)
    found = next(filter(None, (shutil.which(name) for name in names if name)), None)
    checks.facts["compiler"] = hide_owner(found) if found else None
    checks.facts["kernels"] = _kernels(checks)
    if found is None:
        checks.notes.append(
            "no C++ compiler, so torch.compile has no effect on the CPU; type: sudo apt install g++"
        )


def _kernels(checks: Checks) -> str:
    if checks.problems:
        return "unknown"
    from vitcli.runner.machine.device import DTYPES, cpu_kind
    from vitcli.runner.machine.kernels import NoKernelsError, find_compiler, native_backend_of

    kind = cpu_kind()
    names = [name for name, dtype in DTYPES.items() if native_backend_of(kind, dtype)]
    if not names:
        return f"torch (no native kernels for this system: {platform.system()}, {kind})"
    try:
        find_compiler()
    except NoKernelsError as error:
        checks.notes.append(
            f"{error}, so training on this CPU is slower; type: sudo apt install gcc"
        )
        return "torch"
    return f"native in {' and '.join(names)}"
