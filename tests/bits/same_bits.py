"""Show that two versions of vitcli give bit-identical results.

    python -m tests.bits.same_bits OLD NEW [--only WORD] [--work FOLDER]

Code that is moved and renamed must not change a result. Each case is a few commands in a new
folder, run with the code of either checkout, with whatever Python runs this (it needs vitcli's
dependencies). Only the command line, what ``import vitcli`` offers and the files of a run are used,
so any two versions can be compared. Every tensor of the last checkpoint, metrics, predictions, the
JSON of the commands and the pixels of the maps become named values, all of which must be equal.
Not compared: prose, tables, times, speeds, dates, commits, versions, HTML pages and TensorBoard's
files. Notes only: fields of a configuration that one side lacks, drawn figures.

Exits with 1 if anything differs or a command does not end as it should.
"""

import argparse
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import yaml
from PIL import Image

from tests.bits.same_bits_cases import STUDY, Case, all_cases, experiment

Values = dict[str, str]
Pairs = Iterator[tuple[str, str]]

UNCOMPARED = re.compile(
    r".*seconds.*|.*per_second.*|images/s|.*time.*|.*sha256|date|commits?|dirty|started|vitcli"
    r"|torch|python|platform|hardware|path|place|decoded|detail|question|description|note|notes"
    r"|reason|text|claim|measured|threads|.*omp_num_threads"
)
"""Fields that vary from call to call, or hold prose."""
OFTEN_ONE_SIDED = {"config", "base_config"}
NOTED = {"figure"}


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:24]


def flat(value: Any, prefix: str) -> Pairs:
    """Dotted key -> value, without what may vary; a list without mappings is one value."""
    text = json.dumps(value)
    if isinstance(value, (dict, list)) and value and "{" in text:
        for name, below in value.items() if isinstance(value, dict) else enumerate(value):
            if not UNCOMPARED.fullmatch(str(name)):
                yield from flat(below, f"{prefix}.{name}")
    else:
        yield prefix, text if len(text) < 120 else f"{len(text)} characters {sha256(text.encode())}"


def file_values(path: Path, prefix: str) -> Pairs:
    """What a file holds, by its suffix; safetensors are a JSON header, then bytes."""
    if path.suffix == ".png":
        with Image.open(path) as picture:
            yield prefix, f"{picture.mode} {picture.size} {sha256(picture.tobytes())}"
    elif path.suffix == ".npz":
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                yield f"{prefix}.{name}", sha256(archive.read(name))
    elif path.suffix == ".safetensors":
        content = path.read_bytes()
        start = 8 + int.from_bytes(content[:8], "little")
        for name, about in json.loads(content[8:start]).items():
            if name != "__metadata__":
                first, last = (start + place for place in about["data_offsets"])
                kind = f"{about['dtype']} {about['shape']}"
                yield f"{prefix}.tensor.{name}", f"{kind} {sha256(content[first:last])}"
    elif path.suffix == ".jsonl":
        for number, line in enumerate(path.read_text().splitlines()):
            yield from flat(json.loads(line), f"{prefix}.{number}")
    else:
        yield from flat(json.loads(path.read_text()), prefix)


def run_values(run: Path, prefix: str) -> Pairs:
    """Everything in a run folder that its configuration and seed determine."""
    folders = sorted(run.glob("checkpoints/*"), key=lambda path: int(path.name))
    yield f"{prefix}.checkpoints", " ".join(path.name for path in folders)
    for file in sorted(folders[-1].glob("*.safetensors")):
        yield from file_values(file, prefix)
    state = json.loads((folders[-1] / "manifest.json").read_text())["state"]
    yield from flat(state | {"circumstances": None}, f"{prefix}.state")
    yield from flat(yaml.safe_load((run / "config.yaml").read_text()), f"{prefix}.config")
    meta = json.loads((run / "meta.json").read_text())
    yield f"{prefix}.meta.keys", " ".join(sorted(meta))
    yield from ((f"{prefix}.meta.{k}", str(meta[k])) for k in ("config_hash", "data_hash", "seed"))
    for name in ("metrics.jsonl", "result.json", "status.json", "predictions.npz"):
        if (run / name).exists():
            yield from file_values(run / name, f"{prefix}.{name}")


def write_inputs(folder: Path, fields: str) -> None:
    """The files that a case begins with: experiments, a study, an image folder, a picture."""
    (folder / "exp.yaml").write_text(experiment(fields))
    (folder / "experiments").mkdir()
    (folder / "experiments" / "mine.yaml").write_text(experiment(fields))
    (folder / "study.yaml").write_text(json.dumps(STUDY))
    noise = Random(0)
    for name in [f"images/{kind}/{number}.png" for kind in "abc" for number in range(20)]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.frombytes("RGB", (5, 6), noise.randbytes(90)).resize((30, 36)).save(folder / name)
    Image.frombytes("RGB", (8, 6), noise.randbytes(144)).resize((64, 48)).save(folder / "photo.png")


class Checkout:
    """A version of the code, and where to try it."""

    def __init__(self, path: Path, work: Path) -> None:
        self.path, self.work = path.resolve(), work.resolve()
        self.work.mkdir()
        kept = {k: v for k, v in os.environ.items() if not k.startswith("VITCLI_")}
        self.env = kept | {
            **{"PYTHONPATH": str(self.path), "VITCLI_CACHE": str(self.work / "cache")},
            **{"VITCLI_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
            "COLUMNS": "120",
        }
        done = self.call("python -c 'import vitcli; print(vitcli.__file__)'", self.work)
        found = Path(done.stdout.strip()).resolve()
        if done.returncode or not found.is_relative_to(self.path):
            raise SystemExit(f"vitcli is not imported from {self.path}: {done.stdout}{done.stderr}")
        shipped = json.loads(self.call("experiments ls --json", self.work).stdout)
        self.shipped = shipped if isinstance(shipped, list) else shipped["experiments"]

    def call(self, command: str, folder: Path) -> "subprocess.CompletedProcess[str]":
        first, *rest = shlex.split(command)
        args = rest if first == "python" else ["-m", "vitcli", first, *rest]
        return subprocess.run(
            [sys.executable, *args], cwd=folder, env=self.env, capture_output=True, text=True
        )

    def values(self, case: Case) -> Values:
        """Run a case in a new folder, which is removed afterwards."""
        folder = self.work / case.name.replace("/", "-")
        folder.mkdir()
        write_inputs(folder, case.fields)
        for about in self.shipped if case.name.startswith("shipped") else ():
            study = {"base": about["name"], "seeds": [0], "variants": {"baseline": {}}}
            (folder / f"of-{about['name']}.yaml").write_text(json.dumps(study))
        given = set(folder.rglob("*"))
        found: Values = {}
        for number, text in enumerate(case.commands, start=1):
            kind, _, command = text.partition(": ")
            label = f"{number} {' '.join(command.split()[:2])}"
            done = self.call(command, folder)
            if done.returncode and kind.endswith("?"):
                return {"left out": done.stderr.strip().splitlines()[-1]}
            if bool(done.returncode) != kind.endswith("!") or "Traceback" in done.stderr:
                found[f"FAILED {label}"] = f"status {done.returncode}: {done.stderr[-400:]}"
                break
            found[f"{label}.status"] = str(done.returncode)
            found |= dict(READERS[kind.rstrip("!?")](done.stdout, label))
        else:
            runs = {path.parent for path in folder.rglob("meta.json")}
            for run in runs:
                found |= dict(run_values(run, str(run.relative_to(folder))))
            for path in set(folder.rglob("*")) - given:
                if path.suffix in (".png", ".npz", ".json") and not runs & set(path.parents):
                    name = str(path.relative_to(folder))
                    is_figure = path.suffix == ".png" and "figures" in path.parts
                    found |= dict(file_values(path, f"figure.{name}" if is_figure else name))
        shutil.rmtree(folder)
        return {self.anywhere(k): self.anywhere(v) for k, v in found.items()}

    def anywhere(self, text: str) -> str:
        text = text.replace(str(self.work), "WORK").replace(str(self.path), "CODE")
        return re.sub(r"tfevents\.[\w.-]+", "tfevents", text)


READERS: dict[str, Callable[[str, str], Pairs]] = {
    "json": lambda text, label: flat(json.loads(text or "null"), label),
    "none": lambda text, label: iter(()),
}


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def is_same(name: str, old: Values, new: Values) -> bool:
    """Print how a case went."""
    differences: list[str] = []
    notes: list[str] = []
    for key in sorted(old.keys() | new.keys()):
        parts = set(key.split("."))
        mild = parts & NOTED or ((key in old) != (key in new) and parts & OFTEN_ONE_SIDED)
        if key.startswith("FAILED") or old.get(key) != new.get(key):
            line = f"{key}: {old.get(key, '(nothing)')} -> {new.get(key, '(nothing)')}"
            (notes if mild else differences).append(line)
    if "left out" in old and "left out" in new:
        say(f"left out   {name}: {new['left out']}")
        return True
    tensors = sum(".tensor." in key for key in new)
    word = "DIFFERENT" if differences else "same"
    say(f"{word:10} {name}  {tensors} tensors, {len(new)} values")
    for line in [*differences, *(f"(note) {note}" for note in notes)]:
        say(f"    {line}")
    return not differences


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("checkouts", nargs=2, type=Path, metavar="CHECKOUT")
    parser.add_argument("--only", default="", metavar="WORD", help="cases whose name matches")
    parser.add_argument("--work", type=Path, metavar="FOLDER", help="where to try; emptied after")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.work) as work, ThreadPoolExecutor(2) as pool:
        sides = [Checkout(c, Path(work) / str(n)) for n, c in enumerate(options.checkouts)]
        cases = [c for c in all_cases(sides[0].shipped) if re.search(options.only, c.name)]
        taken = [[pool.submit(side.values, case) for side in sides] for case in cases]
        wrong = 0
        for case, (old, new) in zip(cases, taken, strict=True):
            wrong += not is_same(case.name, old.result(), new.result())
    say(f"{len(cases)} cases, {wrong or 'nothing'} differs")
    return 1 if wrong or not cases else 0


if __name__ == "__main__":
    sys.exit(main())
