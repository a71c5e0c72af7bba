"""Train one experiment in one run folder: prepare, consume fit(), evaluate, save, stop, resume."""

import errno
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vitcli.core.data.source import DataSet
from vitcli.core.models.vit import VisionTransformer, build_vit
from vitcli.core.spec import ExperimentSpec
from vitcli.runner.checkpoint import latest_checkpoint
from vitcli.runner.compare import differences
from vitcli.runner.config import Experiment, config_hash, fit_to_data
from vitcli.runner.datasets import load_data
from vitcli.runner.device import environment, pick_device
from vitcli.runner.errors import ConfigError, InputError, ResourceError
from vitcli.runner.events import Event
from vitcli.runner.files import commit_json
from vitcli.runner.outcome import finish
from vitcli.runner.run_dir import RunDir, default_path, find_run
from vitcli.runner.signals import StopFlag
from vitcli.runner.training import Training


@dataclass(frozen=True, kw_only=True)
class Request:
    """How and where to train; nothing here changes what is trained."""

    device: str = "auto"
    data_dir: Path | None = None
    offline: bool = False
    output: Path | None = None
    resume: bool = False
    rerun: bool = False


@dataclass(frozen=True)
class Outcome:
    """The run, its result.json, and whether it was trained just now."""

    run: RunDir
    result: dict[str, Any]
    trained: bool


def ignore(_: object) -> None:
    """The default listener."""


def train(
    experiment: Experiment,
    request: Request,
    *,
    on_event: Callable[[Event], None] = ignore,
    on_message: Callable[[str], None] = ignore,
) -> Outcome:
    """Train an experiment to its end, or continue it.

    Raises:
        UserError: One of its kinds; StoppedError and DivergedError leave a run that can be read.
    """
    path = request.output or default_path(experiment.name, experiment.spec, experiment.changed)
    run = RunDir(path)
    device = pick_device(request.device)
    with run.lock():
        if is_done(run, experiment.spec, request):
            return Outcome(run, run.read("result.json"), trained=False)
        with resource_errors():
            return _train(experiment, request, run, device, on_event, on_message)


def is_done(run: RunDir, spec: ExperimentSpec, request: Request) -> bool:
    """Decide between starting, continuing and nothing to do; refuse what would lose something."""
    if not run.exists:
        return False
    if request.rerun:
        run.clear()
        return False
    stored = run.spec()
    if differ := differences(stored, filled(spec, stored)):
        raise ConfigError(
            f"{run.path} holds a run with another configuration ({', '.join(differ)});"
            " choose another folder with -o, or replace it with --rerun"
        )
    status = run.status()
    if status["state"] == "finished":
        return True
    if request.resume:
        return False
    raise ConfigError(
        f"{run.path} holds an unfinished run ({status['state']} at step {status['step']});"
        f" continue it: vitcli train --resume {shlex.quote(run.name)}   start over: --rerun"
    )


def filled(spec: ExperimentSpec, stored: ExperimentSpec) -> ExperimentSpec:
    """``spec`` with the fields that follow the data set taken from a stored, resolved spec."""
    model = {k: v for k, v in stored.model.model_dump().items() if getattr(spec.model, k) is None}
    follow = ("class_names", "mean", "std")
    data = {k: getattr(stored.data, k) for k in follow if getattr(spec.data, k) is None}
    return spec.replace(model=spec.model.replace(**model), data=spec.data.replace(**data))


def _train(
    experiment: Experiment,
    request: Request,
    run: RunDir,
    device: torch.device,
    on_event: Callable[[Event], None],
    on_message: Callable[[str], None],
) -> Outcome:
    spec = experiment.spec
    checkpoint = latest_checkpoint(run.checkpoints, on_message) if run.exists else None
    data = load_data(
        spec.data, data_dir=request.data_dir, offline=request.offline, on_message=on_message
    )
    spec = resolve(spec, data)
    refuse_other_data(run, data)
    model = initial_model(spec, on_message)
    run.create(spec)
    run.set_status("running", checkpoint.step if checkpoint else 0)
    training = Training(spec, model, data.to(device), run, device, on_event, on_message)
    commit_json(run.path / "meta.json", training_facts(experiment, data, device))
    if checkpoint:
        training.restore(checkpoint)
    with StopFlag(on_message) as stop:
        training.train(stop)
    return Outcome(run, finish(training), trained=True)


def resolve(spec: ExperimentSpec, data: DataSet) -> ExperimentSpec:
    """The spec with everything that follows the data set written out."""
    spec = fit_to_data(spec, data)
    mean, std = spec.data.mean or data.mean, spec.data.std or data.std
    return spec.replace(data=spec.data.replace(mean=mean, std=std))


def refuse_other_data(run: RunDir, data: DataSet) -> None:
    seen = run.read("meta.json").get("data_hash")
    if seen and seen != data.data_hash:
        raise InputError(
            f"{run.path} was trained on other images (hash {seen[:12]}, now {data.data_hash[:12]});"
            " start over with --rerun, or point --data-dir at the old ones"
        )


def initial_model(spec: ExperimentSpec, on_message: Callable[[str], None]) -> VisionTransformer:
    """A freshly initialised model, or one that starts from another run's weights."""
    torch.manual_seed(spec.seed)
    try:
        model = build_vit(spec.model)
    except ValueError as error:
        raise ConfigError(f"model: {error}") from error
    if spec.train.init:
        load_initial_weights(model, spec.train.init, on_message)
    return model


def load_initial_weights(
    model: VisionTransformer, source: str, on_message: Callable[[str], None]
) -> None:
    """Copy a run's weights; its head is left out where the classes differ."""
    from vitcli.runner.evaluate import run_weights

    weights = run_weights(find_run(source))
    own = model.state_dict()
    differs = [k for k in own if k not in weights or weights[k].shape != own[k].shape]
    if [k for k in differs if not k.startswith("head.")] or weights.keys() - own.keys():
        names = [k for k in differs if not k.startswith("head.")]
        names += sorted(weights.keys() - own.keys())
        raise ConfigError(f"train.init: the weights of {source} do not fit: {names[0]} differs")
    if differs:
        on_message(f"starting from {source} with a new head ({own['head.bias'].numel()} classes)")
    model.load_state_dict(weights | {k: own[k] for k in differs})


def training_facts(experiment: Experiment, data: DataSet, device: torch.device) -> dict[str, Any]:
    """meta.json: what was run, on what, from which code."""
    return {
        "experiment": experiment.name,
        "command": shlex.join(["vitcli", *sys.argv[1:]]),
        "config_hash": config_hash(experiment.spec),
        "data": data.name,
        "data_hash": data.data_hash,
        "num_train": len(data.train),
        "num_val": len(data.val) if data.val else 0,
        "num_test": len(data.test),
        "seed": experiment.spec.seed,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        **environment(device),
    }


class resource_errors:  # noqa: N801  (reads as the verb it is: with resource_errors())
    """Turn exhausted memory and disk into errors that name the smaller setting to try."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ResourceError(
                f"disk full while writing {error.filename or 'the run folder'};"
                " free some space and continue with --resume auto"
            ) from error
        if isinstance(error, torch.OutOfMemoryError | MemoryError) or (
            isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
        ):
            raise ResourceError(
                "out of memory; try -s train.accumulate=2 (same result in smaller parts)"
                " or -s train.grad_checkpointing=true"
            ) from error


def resume_experiment(name: str) -> tuple[Experiment, Path]:
    """The experiment stored in a run folder, to be continued there."""
    run = find_run(name)
    spec = run.spec()
    label = run.read("meta.json").get("experiment") or run.path.name
    return Experiment(str(label), spec, run.path / "config.yaml"), run.path
