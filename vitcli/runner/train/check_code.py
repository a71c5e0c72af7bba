"""`vitcli experiments check`: what vitcli requires of own parts, tried on small trainings."""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from vitcli.core.metric import METRICS, Metric, own_metrics
from vitcli.core.models.own import CLOSE
from vitcli.core.models.vit import VisionTransformer
from vitcli.core.nn.attention import NoMapError
from vitcli.core.spec.own import FIELDS
from vitcli.core.spec.task import DEFAULT_TASK
from vitcli.core.train.training import Training
from vitcli.plugin import load_target
from vitcli.runner.data.load import load_data
from vitcli.runner.errors import OwnCodeError, UserError
from vitcli.runner.experiment import own_code
from vitcli.runner.experiment.build import new_module, with_gradient
from vitcli.runner.experiment.config import Experiment, override, parse_experiment
from vitcli.runner.experiment.resolve import resolve
from vitcli.runner.experiment.yaml_text import Places
from vitcli.runner.machine.device import pick_device
from vitcli.runner.run.checkpoint import latest_checkpoint
from vitcli.runner.run.folder import RunDir
from vitcli.runner.text import ignore_message
from vitcli.runner.train.build import build_training, settings
from vitcli.runner.train.contract import own_parts, tolerance_on
from vitcli.runner.train.prepare import Request
from vitcli.runner.train.train import train

SMALL: dict[str, Any] = {
    "model": {"embed_dim": 16, "depth": 2, "num_heads": 2, "mlp_ratio": 2.0, "pool": "mean"},
    "data": {"name": "shapes"},
    "train": {"epochs": 2, "batch_size": 16, "limit_batches": 2, "precision": "fp32"},
}
"""A training of a second."""


@dataclass(frozen=True, kw_only=True)
class PartReport:
    """What is wrong with one part; ``problem`` is empty if nothing is."""

    part: str
    field: str
    parameters: int
    problem: str


def check_code(device_name: str) -> list[PartReport]:
    device = pick_device(device_name)
    reports = [
        _check_part(name, field, device)
        for field, table in FIELDS.items()
        for name, row in table.items()
        if row.source
    ]
    return reports + _check_metrics(device)


def _check_metrics(device: torch.device) -> list[PartReport]:
    """Check all metrics in one training, which measures them all; each alone if that fails."""
    rows = {row.name: row for row in own_metrics()}
    if not rows:
        return []
    whole = _check_part(DEFAULT_TASK, "task.name", device)
    reports = dict.fromkeys(rows, whole)
    if whole.problem and len(rows) > 1:
        for name, row in rows.items():
            for other in rows:
                del METRICS[other]
            METRICS[name] = row
            reports[name] = _check_part(DEFAULT_TASK, "task.name", device)
            METRICS.update(rows)
    for name, row in rows.items():
        if not reports[name].problem:
            reports[name] = replace(reports[name], problem=_remembers(row))
    return [replace(report, part=name, field="metric") for name, report in reports.items()]


def _remembers(metric: Metric) -> str:
    """Return the problem of a metric whose number depends on the calls before it."""
    measure, labels = load_target(metric.of_logits), torch.arange(40) % 10
    generator = torch.Generator().manual_seed(0)
    one, other = (torch.randn(40, 10, generator=generator).double() for _ in range(2))
    try:
        first, _, again = (measure(logits, labels) for logits in (one, other, one))
    except Exception:  # a metric of certain classes or sizes; the training above measured it
        return ""
    if first == again:
        return ""
    place = own_code.place_of(measure.args[0])
    return (
        f"{place}: metric {metric.name} gave other numbers for the same logits after a call with"
        " others; keep nothing between calls"
    )


def _check_part(name: str, field: str, device: torch.device) -> PartReport:
    parameters, problem = 0, ""
    try:
        raw = SMALL | ({"model": {}} if field == "model.family" else {})
        spec = parse_experiment(override(raw, {field: name}), Places((), "experiments check"))
        data = load_data(spec.data, on_message=ignore_message)
        spec = resolve(spec, data)
        with torch.random.fork_rng(devices=[]):
            training = build_training(spec, new_module(spec), data.to(device), kernels="torch")
        modules = [part for _, _, part in own_parts(training.task)]
        parameters = sum(p.numel() for part in modules for p in part.parameters())
        _check_gradients(training)
        _check_alone(training)
        _check_maps(training)
        _check_resume(training)
    except UserError as error:
        problem = str(error)
    except BaseException as error:
        problem = own_code.locate_in_own_code(error)
        if not problem:
            raise
    return PartReport(part=name, field=field, parameters=parameters, problem=problem)


def _check_gradients(training: Training) -> None:
    """Refuse a part with a parameter that the loss does not depend on."""
    training.module.train()
    with settings(training), with_gradient(training.spec):
        training.task.losses(next(iter(training.batches(0))))["loss"].backward()
    for _, kind, part in own_parts(training.task):
        for name, parameter in part.named_parameters():
            if parameter.grad is None or not parameter.grad.isfinite().all():
                what = "no gradient" if parameter.grad is None else "a gradient of NaN or infinity"
                raise OwnCodeError(f"{own_code.place_of(kind)}: {kind.__name__}.{name} has {what}")
    training.module.zero_grad()


@torch.no_grad()
def _check_alone(training: Training) -> None:
    """Refuse a model whose output for an image depends on the other images of an evaluation."""
    encoder = training.task.encoder(training.module)
    images = next(iter(training.batches(0)))["images"]
    encoder.eval()
    if images.ndim != 4:  # views of images
        return
    whole, alone = encoder(images), torch.cat([encoder(image[None]) for image in images])
    if not torch.allclose(whole, alone, rtol=0, atol=CLOSE * float(whole.abs().max())):
        files = ", ".join(sorted(training.spec.code))
        raise OwnCodeError(
            f"{files}: the output for an image depends on the other images of its batch, or on"
            " chance; in evaluation, a batch norm must use its stored statistics and a dropout must"
            " do nothing (training=self.training)"
        )


@torch.no_grad()
def _check_maps(training: Training) -> None:
    """Refuse an attention or a pooling whose ``weights`` are no shares, so that maps are wrong."""
    model = training.task.encoder(training.module)
    images = next(iter(training.batches(0)))["images"]
    if not isinstance(model, VisionTransformer) or not model.has_attention_weights:
        return
    model.eval()
    try:
        model.attention_weights(images)
        model.pool_weights(images)
    except NoMapError as error:
        raise OwnCodeError(f"{', '.join(sorted(training.spec.code))}: {error}") from error


def _check_resume(training: Training) -> None:
    """Refuse a part with which a resumed training ends with other numbers."""
    spec = training.spec
    device = str(training.device)
    tolerance = tolerance_on(training.device)
    with TemporaryDirectory() as folder:
        calm, stopped = (Path(folder) / name for name in ("calm", "stopped"))
        experiment = Experiment("check", spec, Path("check"))
        try:
            train(experiment, Request(output=calm, device=device))
            train(experiment, Request(output=stopped, device=device, stop_after=1))
            train(experiment, Request(output=stopped, device=device, resume=True))
        except UserError as error:
            problem = re.sub(rf"{re.escape(folder)}/\w+", "a small training", str(error))
            raise OwnCodeError(problem) from error
        ends = [
            latest_checkpoint(RunDir(path).checkpoints, ignore_message) for path in (calm, stopped)
        ]
    one, other = (end.tensors if end else {} for end in ends)
    for name in one:
        if not torch.allclose(one[name], other[name], rtol=tolerance, atol=tolerance):
            raise OwnCodeError(
                f"{', '.join(sorted(spec.code))}: a resumed training ends with other numbers"
                f" ({name}); keep state in parameters or buffers, and take random numbers from"
                " torch"
            )
