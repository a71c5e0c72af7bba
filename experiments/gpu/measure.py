"""Spend the minutes of a GPU: make the measurements that are missing, the most wanted first.

Usage: experiments/gpu/measure.sh --seconds N --out DIR [--data DIR] [OPTIONS] [STAGE...]

    experiments/gpu/measure.sh --seconds 540 --out measured --data cifar10 --pack packed

Each stage has a budget of time and one or more parts. A part whose result is committed in
experiments/results/gpu is skipped. Each part writes its result as NAME.json as soon as it ends, and
its messages as NAME.log. Call the script again to run what is not done: a training continues from
its checkpoint, other parts start anew. The exit code is 3 while a stage is not done.

Without --data DIR, the folder with CIFAR-10, stages that train on CIFAR-10 are skipped. Without a
GPU, or with --toy, all stages run at toy size, as a test of this script. Their results go to
DIR/toy, and --data may be missing.
"""

import argparse
import json
import math
import shutil
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from xml.etree import ElementTree

from packing import pack, unpack
from stages import ROOT, Facts, Outcome, Part, Stage, StageRunner

from vitcli.cli.engines import parse_duration
from vitcli.runner.errors import UserError
from vitcli.runner.experiment.config import load_experiment

SPEED = ROOT / "experiments/speed"
COMMITTED = ROOT / "experiments/results/gpu"
NEEDED = ("pytest", "timm", "transformers", "vit_pytorch")
"""Packages of the tests and of the libraries beside which vitcli is measured."""
TOY_MODEL = ("-s", "model.depth=1")
TOY_BATCH = ("-s", "train.batch_size=8")
TOY = (*TOY_MODEL, *TOY_BATCH)
TOY_TRAINING = ("--limit-batches", "2", "-s", "optim.warmup_epochs=0.0", *TOY_BATCH)
TOY_STUDY = """\
base: %s
model: {depth: 1}
data: {name: %s}
optim: {warmup_epochs: 0.0}
train: {epochs: 1, batch_size: 8, limit_batches: 2}
"""


@dataclass(frozen=True)
class Setup:
    """What the parts of all stages share."""

    out: Path
    data: Path | None
    device: str
    toy: bool
    problem: str
    """Why there is no data for trainings; empty if there is."""

    def vitcli(self, *words: str) -> list[str]:
        """Return a command of vitcli on the device."""
        return [sys.executable, "-m", "vitcli", *words, "--device", self.device]

    def script(self, name: str, *words: str) -> list[str]:
        """Return a command that runs a script in this folder on the device."""
        return [sys.executable, str(SPEED / name), *words, "--device", self.device]

    @property
    def precision(self) -> list[str]:
        return ["--precision", "bf16" if self.device == "cuda" else "auto"]

    @property
    def clock(self) -> list[str]:
        return ["--rounds", "1", "--seconds", "0"] if self.toy else ["--rounds", "5"]

    @property
    def seeds(self) -> range:
        return range(1 if self.toy else 3)

    @property
    def data_folder(self) -> list[str]:
        return ["--data-dir", str(self.data)] if self.data else []


def tests(setup: Setup) -> list[Part]:
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "--junitxml=RESULT", "tests"]
    command += ["--collect-only"] if setup.toy else []
    return [Part(name="tests", command=command, read=read_tests)]


def doctor(setup: Setup) -> list[Part]:
    command = [sys.executable, "-m", "vitcli", "doctor", "--json"]
    return [Part(name="doctor", command=command, accepted=(0, 6))]


def share(setup: Setup) -> list[Part]:
    names = ("cifar10-tiny", "cifar10-small", "cifar10-base-p2")
    options = [*setup.precision, *setup.clock, *(TOY if setup.toy else ()), "--json"]
    return [
        Part(name=f"share-{name}", command=[*setup.vitcli("bench", "train", name), *options])
        for name in names
    ]


def throughput(setup: Setup) -> list[Part]:
    on_gpu = setup.device == "cuda"
    options = ["--precision", "bf16" if on_gpu else "fp32", *setup.clock, "-o", "RESULT"]
    options += ["--data", str(setup.data)] if setup.data else []
    kinds = [("step", "default"), ("step", "reduce-overhead"), ("end_to_end", "default")]
    races = [(model, *kind) for kind in kinds for model in ("tiny", "small")]
    races += [("base", "step", "default")]
    parts = [
        Part(
            name="-".join(["peers", model, part, *([mode] if mode != "default" else [])]),
            command=[
                *setup.script("peers.py", "--models", model, "--parts", part),
                *(["--compile", mode] if on_gpu else []),
                *options,
            ],
            uses_data=True,
        )
        for model, part, mode in (races[:1] if setup.toy else races)
    ]
    size = ["2", "--rounds", "1"] if setup.toy else ["4"]
    seeds = setup.script("many_trials.py", *size, "-o", "RESULT")
    return [*parts, Part(name="many-trials", command=seeds)]


def attention(setup: Setup) -> list[Part]:
    lengths = "64,128" if setup.toy else "64,256,1024,4096,16384"
    options = ["--lengths", lengths, *setup.clock, "--json"]
    return [Part(name="attention", command=[*setup.vitcli("bench", "attention"), *options])]


def hybrid(setup: Setup) -> list[Part]:
    return [training(setup, "cifar10-hybrid", seed) for seed in setup.seeds]


def report(setup: Setup) -> list[Part]:
    names = ("cifar10-resnet18", "cifar10-small", "cifar10-small-aug")
    return [training(setup, name, seed) for seed in setup.seeds for name in names]


def training(setup: Setup, experiment: str, seed: int) -> Part:
    """Return a training that continues where it was stopped."""
    name = f"{experiment}-seed{seed}"
    folder, epochs = setup.out / "runs" / name, load_experiment(experiment).spec.train.epochs
    words = ["--seed", str(seed), *setup.precision]
    if setup.toy:
        epochs = 1
        words += ["--epochs", "1", *TOY_TRAINING]
        words += [] if experiment == "cifar10-resnet18" else TOY_MODEL
    words += setup.data_folder or ["--data", "shapes"]
    words += ["-o", str(folder), "--resume", "auto", "--allow-inexact", "--json"]
    return Part(
        name=name,
        command=[*setup.vitcli("train", experiment), *words],
        uses_data=True,
        read=partial(read_training, folder),
        progress=partial(count_epochs, folder, epochs),
        skipped=setup.problem,
    )


def positions(setup: Setup) -> list[Part]:
    """Train the row without positions and its baseline, of the flagship and two other lengths."""
    return [
        study(setup, name, "no-positional-encoding")
        for name in ("ablation-cifar10-full", "ablation-length-15", "ablation-length-5")
    ]


def study(setup: Setup, name: str, variant: str) -> Part:
    """Return the training of one row and its baseline; the result is the table of all seeds."""
    file = name
    if setup.toy:
        file = str(setup.out / f"{name}-toy.yaml")
        Path(file).write_text(TOY_STUDY % (name, "cifar10" if setup.data else "shapes"))
    words = [*setup.vitcli("ablate", file), "--only", variant, *setup.data_folder]
    words += ["--seeds", "0"] if setup.toy else []
    words += ["--format", "json", "--budget", "TIME", "--save", str(setup.out / "trials")]
    return Part(
        name=name,
        command=[*words, "-o", str(setup.out / "runs" / name)],
        uses_data=True,
        unfinished=(3, 128 + signal.SIGTERM),
        skipped=setup.problem,
    )


def resume(setup: Setup) -> list[Part]:
    options = ["--limit-batches", "2"] if setup.toy else []
    exact = ["-s", "train.deterministic=true"]
    return [
        Part(
            name=name,
            command=setup.script("resume_exact.py", *options, *changes, "-o", "RESULT"),
            accepted=(0, 6),
        )
        for name, changes in (("resume", []), ("resume-deterministic", exact))
    ]


def memory(setup: Setup) -> list[Part]:
    names = ("cifar10-tiny", "cifar10-small", "cifar10-strong", "cifar10-base-p2")
    options = [*setup.precision, *(TOY if setup.toy else ())]
    return [
        Part(name=f"memory-{name}", command=setup.script("memory.py", name, *options))
        for name in (names[:1] if setup.toy else names)
    ]


STAGES: dict[str, tuple[Callable[[Setup], list[Part]], str]] = {
    "peers": (throughput, "110s"),
    "resume": (resume, "20s"),
    "tests": (tests, "60s"),
    "hybrid": (hybrid, "200s"),
    "positions": (positions, "90s"),
    "report": (report, "2h"),
    "doctor": (doctor, "30s"),
    "share": (share, "5m"),
    "attention": (attention, "5m"),
    "memory": (memory, "8m"),
}
"""Name -> the parts of a stage, and its budget. A stage runs in this order."""


def read_tests(report: str) -> Facts:
    """Return the numbers of tests, and the names of those that failed, in a JUnit report."""
    suite = next(ElementTree.fromstring(report).iter("testsuite"))
    counts = {name: int(suite.attrib[name]) for name in ("tests", "failures", "errors", "skipped")}
    cases = [case for case in suite.iter("testcase") if case.find("failure") is not None]
    return counts | {"failed": [f"{case.get('classname')}.{case.get('name')}" for case in cases]}


def read_training(folder: Path, result: str) -> Facts:
    """Return the result of a training, with the metrics of its epochs."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return dict(json.loads(result)) | {"metrics": [json.loads(line) for line in lines]}


def count_epochs(folder: Path, epochs: int) -> str:
    """Return how far a training is."""
    try:
        last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    except (OSError, IndexError, ValueError):
        return ""
    return f"epoch {last['epoch']} of {epochs}"


def find_facts(data: Path | None) -> Facts:
    """Return the facts that each result repeats: device, versions, commit, hash of the images."""
    import torch

    from vitcli.core.spec import DataSpec
    from vitcli.runner.data.load import load_data
    from vitcli.runner.machine.device import environment, pick_device

    device = pick_device("cuda" if torch.cuda.is_available() else "cpu")
    facts = environment(device) | {"cuda": torch.version.cuda}
    if data:
        try:
            images = load_data(DataSpec(name="cifar10"), data_dir=data, offline=True)
            facts["data_hash"] = images.data_hash
        except UserError as error:
            facts["data_problem"] = f"DATA: {error}"
    return facts


def read_facts(data: Path | None) -> Facts:
    """Return ``find_facts`` of another process, so that this one holds no memory of the GPU."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(find_facts, data).result()


def parse(words: list[str]) -> argparse.Namespace:
    """Return the options; ``given`` maps a stage to seconds."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=", ".join(STAGES))
    parser.add_argument("--seconds", type=float, default=math.inf, help="time of the whole call")
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--data", type=Path, help="folder with CIFAR-10")
    parser.add_argument(
        "--budget",
        action="append",
        default=[],
        metavar="STAGE=TIME",
        help="time of a stage, such as hybrid=20m; may be repeated",
    )
    parser.add_argument("--again", action="store_true", help="also run what is done")
    parser.add_argument("--toy", action="store_true", help="toy size on a GPU, too")
    parser.add_argument(
        "--pack",
        type=Path,
        metavar="FOLDER",
        help="keep results.tar.gz, and the state of trainings in pieces below 16 MiB, in FOLDER,"
        " and continue from them if OUT is empty",
    )
    parser.add_argument("--commit", help="commit to note where the checkout has no .git")
    options = parser.parse_args(words)
    texts = [text.rpartition("=") for text in options.budget]
    try:
        options.given = {name: parse_duration(time) for name, _, time in texts}
    except UserError as error:
        parser.error(str(error))
    if unknown := {*options.stages, *options.given} - {*STAGES}:
        parser.error(f"no stage {', '.join(sorted(unknown))}; choose from {', '.join(STAGES)}")
    return options


def forget(out: Path, parts: list[Part]) -> None:
    """Delete the trainings of these parts, which would otherwise continue or be finished."""
    for part in parts:
        shutil.rmtree(out / "runs" / part.name, ignore_errors=True)


def is_committed(part: Part) -> bool:
    """Return whether the result of a part, with this name, stands in the repository."""
    try:
        return json.loads((COMMITTED / f"{part.name}.json").read_text())["state"] == "done"
    except (OSError, ValueError, KeyError):
        return False


def main() -> None:
    options = parse(sys.argv[1:])
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise SystemExit(f"not installed: {', '.join(missing)}; pip install '.[bench,test]'")
    data = options.data.resolve() if options.data else None
    facts = read_facts(data)
    facts["commit"] = facts["commit"] or options.commit
    toy = options.toy or facts["device"] == "cpu"
    problem = facts.pop("data_problem", "" if data or toy else "--data is not given")
    out = options.out.resolve() / "toy" if toy else options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    say = partial(print, flush=True)
    if options.pack:
        unpack(options.pack, out)
    setup = Setup(out, None if problem else data, facts["device"], toy, problem)
    runner = StageRunner(
        out,
        facts | {"toy": toy},
        places={str(data): "DATA"} if data else {},
        again=options.again,
        seconds=options.seconds,
        after_part=partial(pack, out, options.pack, say) if options.pack else lambda: None,
        say=say,
    )
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    outcomes = dict[str, Outcome]()
    for name in [name for name in STAGES if name in (options.stages or STAGES)]:
        make_parts, budget = STAGES[name]
        parts = make_parts(setup)
        if options.again:
            forget(out, parts)
        elif not toy:
            parts = [part for part in parts if not is_committed(part)]
        if not parts:
            outcomes[name] = Outcome("done", "committed")
            continue
        seconds = options.given.get(name, math.inf if toy else parse_duration(budget))
        outcomes[name] = runner.run(Stage(name, seconds, parts))
    for name, outcome in outcomes.items():
        say(f"{name:<11} {outcome}")
    sys.exit(0 if all(outcome.state == "done" for outcome in outcomes.values()) else 3)


if __name__ == "__main__":
    main()
