"""Plant the bugs that experiment runners have had, one at a time, and see a test catch each.

Usage: python -m tests.faults.mutants [--record] [NAME...]
Each mutant is a copy of this checkout with one edit; what must fail is the command beside it. A
command that does not fail means that the tests have a hole: exit 1.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.faults.results import keep

ROOT = Path(__file__).parents[2]
KILLS = ("-m", "tests.faults.kills", "--count", "40", "--seed", "1")
CRASHES = ("-m", "tests.faults.crash_points", "--seed", "1", "--count", "150")
POWER = ("-m", "tests.faults.power_loss", "--seed", "1", "--count", "3")
DAMAGE = ("-m", "tests.faults.damage", "--seed", "1", "--count", "50")
RACES = ("-m", "tests.faults.races", "--seed", "1", "--count", "5")
STOPS = ("-m", "tests.faults.stops", "--seed", "1", "--count", "8")


def tests(*names: str) -> tuple[str, ...]:
    return ("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *names)


@dataclass(frozen=True)
class Mutant:
    """A bug: in ``file``, ``old`` becomes ``new``; ``command`` must notice."""

    name: str
    file: str
    old: str
    new: str
    command: tuple[str, ...]


MUTANTS = (
    Mutant(
        "saves in place",
        "vitcli/runner/files.py",
        'descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")',
        "descriptor, temporary = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), path",
        CRASHES,
    ),
    Mutant(
        "does not sync the file",
        "vitcli/runner/files.py",
        "            os.fsync(file.fileno())\n",
        "",
        POWER,
    ),
    Mutant(
        "does not sync the folder",
        "vitcli/runner/files.py",
        "    sync_folder(path.parent)\n\n\ndef _replace",
        "\n\ndef _replace",
        POWER,
    ),
    Mutant(
        "does not sync the folder of a new checkpoint",
        "vitcli/runner/run/checkpoint.py",
        "    sync_folder(folder)\n",
        "",
        POWER,
    ),
    Mutant(
        "writes the manifest first",
        "vitcli/runner/run/checkpoint.py",
        "    commit(path / TENSORS, content)\n    commit(path / MANIFEST,"
        " _manifest(checkpoint, TENSORS, content))\n    return path",
        "    commit(path / MANIFEST, _manifest(checkpoint, TENSORS, content))\n"
        "    commit(path / TENSORS, content)\n    return path",
        CRASHES,
    ),
    Mutant(
        "prunes before it saves",
        "vitcli/runner/train/trainer.py",
        "        save_checkpoint(self.run.checkpoints, self.checkpoint())\n",
        "        prune(self.run.checkpoints, ())\n"
        "        save_checkpoint(self.run.checkpoints, self.checkpoint())\n",
        CRASHES,
    ),
    Mutant(
        "does not check the tensors' hash",
        "vitcli/runner/run/checkpoint.py",
        'or sha256(content) != expected["sha256"]',
        "",
        DAMAGE,
    ),
    Mutant(
        "does not check the manifest's hash",
        "vitcli/runner/run/checkpoint.py",
        "if has_hash and not is_unchanged(",
        "if False and not is_unchanged(",
        DAMAGE,
    ),
    Mutant(
        "does not restore the optimiser",
        "vitcli/core/train/training.py",
        '        load_state_tensors(self.optimizers, part("optim"))\n',
        "",
        KILLS,
    ),
    Mutant(
        "does not restore the average of the weights",
        "vitcli/core/train/training.py",
        '            self.ema.model.load_state_dict(part("ema"))\n',
        "            pass\n",
        KILLS,
    ),
    Mutant(
        "begins the schedule anew",
        "vitcli/core/train/training.py",
        "            rates = self.rates(self.step)\n",
        "            rates = self.rates(self.step - first)\n",
        KILLS,
    ),
    Mutant(
        "draws other random numbers after a resume",
        "vitcli/core/train/training.py",
        "            seed_step(self.device, self.spec.seed, self.step, ranks.own_rank())\n",
        "            self.step or seed_step(self.device, self.spec.seed, 0)\n",
        KILLS,
    ),
    Mutant(
        "forgets how far into the epoch it was",
        "vitcli/core/train/training.py",
        "        first = self.step - epoch * self.steps_per_epoch\n",
        "        first = 0\n",
        STOPS,
    ),
    Mutant(
        "forgets the sums of a half epoch",
        "vitcli/core/train/training.py",
        "        self.sums.zero_()[: len(sums)].copy_(sums)\n",
        "",
        STOPS,
    ),
    Mutant(
        "is one step off",
        "vitcli/core/train/training.py",
        "        self.step = step\n",
        "        self.step = step + 1\n",
        KILLS,
    ),
    Mutant(
        "saves in the middle of a step",
        "vitcli/core/train/training.py",
        "            self.step += 1\n"
        "            yield Step(step=self.step, lr=rates[-1], scalars=scalars)\n",
        "            yield Step(step=self.step + 1, lr=rates[-1], scalars=scalars)\n"
        "            self.step += 1\n",
        STOPS,
    ),
    Mutant(
        "keeps the metrics of steps that were lost",
        "vitcli/runner/train/trainer.py",
        '[r for r in self.run.metrics() if r["step"] <= self.step]',
        "self.run.metrics()",
        KILLS,
    ),
    Mutant(
        "takes no lock",
        "vitcli/runner/run/folder.py",
        "        lock.acquire()\n",
        "        pass\n",
        RACES,
    ),
    Mutant(
        "trains on after a NaN",
        "vitcli/runner/train/trainer.py",
        "        if all(math.isfinite(number) for number in numbers):\n            return\n",
        "        return\n",
        tests("tests/runner/train/test_resume.py", "-k", "divergence"),
    ),
    Mutant(
        "tries a diverged trial again",
        "vitcli/runner/run/folder.py",
        'RESULT_STATES: tuple[State, ...] = ("finished", "diverged")',
        'RESULT_STATES: tuple[State, ...] = ("finished",)',
        tests("tests/runner/study/test_run.py"),
    ),
    Mutant(
        "does not try a killed trial again",
        "vitcli/runner/engines/engine.py",
        "MAX_ATTEMPTS = 3",
        "MAX_ATTEMPTS = 1",
        tests("tests/runner/study/test_run.py", "-k", "killed_or_hung"),
    ),
    Mutant(
        "reads pickles of strangers",
        "vitcli/runner/weights/unpickle.py",
        'map_location="cpu", weights_only=True',
        'map_location="cpu", weights_only=False',
        tests("tests/cli/test_import_files.py", "-k", "hostile"),
    ),
    Mutant(
        "continues on other hardware without a word",
        "vitcli/runner/train/start.py",
        "        refuse_inexact(run.name, inexact)\n",
        "        pass\n",
        tests("tests/runner/train/test_exactness.py"),
    ),
    Mutant(
        "starts over when every checkpoint is damaged",
        "vitcli/runner/run/checkpoint.py",
        "    if found:\n        raise InputError",
        "    if False:\n        raise InputError",
        tests("tests/runner/run/test_checkpoint.py"),
    ),
)


def plant(mutant: Mutant, copy: Path) -> None:
    """Edit the copy; the text must be there once."""
    path = copy / mutant.file
    text = path.read_text()
    if text.count(mutant.old) != 1:
        raise SystemExit(f"{mutant.name}: its place is not found once in {mutant.file}")
    path.write_text(text.replace(mutant.old, mutant.new))


def is_caught(mutant: Mutant, scratch: Path) -> bool:
    """Whether its command fails, as it must; and not for want of a module."""
    copy = scratch / "checkout"
    shutil.rmtree(copy, ignore_errors=True)
    for name in ("vitcli", "tests", "experiments", "pyproject.toml"):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, copy / name)
    plant(mutant, copy)
    command = [sys.executable, *mutant.command]
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True, timeout=900)
    if "ModuleNotFoundError" in done.stderr:
        raise SystemExit(f"{mutant.name}: {done.stderr}")
    return done.returncode == 1


def main() -> None:
    names = [word for word in sys.argv[1:] if word != "--record"]
    chosen = [m for m in MUTANTS if not names or m.name in names]
    began, missed = time.monotonic(), []
    with tempfile.TemporaryDirectory() as scratch:
        for mutant in chosen:
            caught = is_caught(mutant, Path(scratch))
            missed += [] if caught else [mutant.name]
            words = "caught" if caught else "MISSED"
            print(f"{words}  {mutant.name}", file=sys.stderr, flush=True)  # noqa: T201
    seconds = round(time.monotonic() - began)
    found = {"campaign": "mutants", "mutants": len(chosen), "missed": len(missed)}
    print(json.dumps(found | {"seconds": seconds}))  # noqa: T201
    if "--record" in sys.argv:
        keep(found | {"seconds": seconds})
    if missed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
