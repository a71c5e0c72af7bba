"""Fuzz targets: functions that read hostile bytes and return a value or raise a UserError.

Every other exception is a bug. ``seeds()`` returns good inputs, which the fuzzer damages. Inputs
that once broke a target are in ``crashes/<target>/``, and every test run tries them again.
"""

import io
import json
import math
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache, wraps
from pathlib import Path

import safetensors.torch
import torch
from PIL import Image
from torch.utils.tensorboard import SummaryWriter

from vitcli.core.spec import ExperimentSpec
from vitcli.runner.data.pictures import can_read_heic, decode, quiet_pillow
from vitcli.runner.errors import UserError
from vitcli.runner.experiment.config import config_text, parse_experiment
from vitcli.runner.experiment.yaml_text import Document, dump
from vitcli.runner.files import to_hashed_json
from vitcli.runner.run.checkpoint import Checkpoint, parse_manifest, parse_tensors, save_checkpoint
from vitcli.runner.run.folder import MANIFEST
from vitcli.runner.run.record import parse_metrics
from vitcli.runner.run.tensorboard import read_picture_events

CRASHES = Path(__file__).parent / "crashes"
PLACE = Path("run/checkpoints/5")


def may_refuse(target: Callable[[bytes], None]) -> Callable[[bytes], None]:
    @wraps(target)
    def run(data: bytes) -> None:
        with suppress(UserError):
            target(data)

    return run


@may_refuse
def yaml(data: bytes) -> None:
    """Check that an accepted experiment is unchanged after writing and reading."""
    document = Document(data.decode(errors="replace"), "fuzz.yaml")
    if isinstance(document.data, dict):
        spec = parse_experiment(document.data, document)
        again = Document(config_text(spec), "again.yaml")
        assert parse_experiment(again.data, again) == spec


@may_refuse
def yaml_text(data: bytes) -> None:
    value = Document(data.decode(errors="replace"), "fuzz.yaml").data
    assert Document(dump(value), "again.yaml").data == value


@may_refuse
def manifest(data: bytes) -> None:
    """Check an accepted manifest's fields; then try the manifest again with a correct hash."""
    check_manifest(data)
    try:
        value = json.loads(data)
        value.pop("sha256", None)
        data = to_hashed_json(value)
    except (ValueError, AttributeError, TypeError, RecursionError):
        return
    check_manifest(data)


@may_refuse
def check_manifest(data: bytes) -> None:
    found = parse_manifest(data, PLACE)
    ((name, entry),) = found["files"].items()
    assert name in ("tensors.safetensors", "weights.safetensors")
    assert {"sha256", "bytes"} <= entry.keys()
    assert found["step"] == 5
    assert isinstance(found["state"], dict)


@may_refuse
def tensors(data: bytes) -> None:
    found = parse_tensors(data, PLACE)
    assert sum(tensor.numel() * tensor.element_size() for tensor in found.values()) <= len(data)


def metrics(data: bytes) -> None:
    """Check that every record has a step, and that there are not more records than lines."""
    try:
        found = parse_metrics(data.decode(errors="replace"))
    except ValueError:
        return
    assert len(found) <= data.count(b"\n")
    assert all(type(record["step"]) is int for record in found)
    for record in found:
        json.dumps(record, allow_nan=False)


@may_refuse
def image(data: bytes) -> None:
    with quiet_pillow():
        pixels = decode(data, "fuzz", (8, 8), 3)
    assert pixels.shape == (3, 8, 8)
    assert pixels.dtype is torch.uint8


def events(data: bytes) -> None:
    """Check that reading a damaged event file only ends early."""
    with tempfile.NamedTemporaryFile(suffix=".tfevents") as file:
        file.write(data)
        file.flush()
        for event in read_picture_events([Path(file.name)], 10):
            assert math.isfinite(event.step)


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target
    for target in (yaml, yaml_text, manifest, tensors, metrics, image, events)
}


@cache
def seeds(name: str) -> list[bytes]:
    make = {
        "yaml": _configs,
        "yaml_text": _texts,
        "manifest": lambda: [_checkpoint(MANIFEST)],
        "tensors": lambda: [_checkpoint("tensors.safetensors"), _odd_tensors()],
        "metrics": lambda: [b'{"step": 1, "epoch": 1, "lr": 1e-3}\n' * 3],
        "image": _images,
        "events": lambda: [_events()],
    }
    return make[name]()


def _configs() -> list[bytes]:
    shipped = sorted((Path(__file__).parents[2] / "experiments").glob("*.yaml"))
    return [path.read_bytes() for path in shipped] + _texts()


def _texts() -> list[bytes]:
    texts = [
        *("a: 1e-3", "a: off", "a: 010", "a: 12:30", "a: [1, 2]", "a: !!int ''", "a: &x [*x]"),
        *("a: 2024-02-30", "a: !!timestamp x", "? [a]\n: 1", "a: .inf", "'a': \"b\\x00\""),
        *("a: |\n b", config_text(ExperimentSpec())),
    ]
    return [text.encode() for text in texts]


def _checkpoint(name: str) -> bytes:
    values = {"model.a": torch.arange(6.0).view(2, 3), "optim.0.0.step": torch.tensor(5.0)}
    with tempfile.TemporaryDirectory() as folder:
        state = {"weights": "model", "best": [0.1, 5], "scaler": None}
        return (save_checkpoint(Path(folder), Checkpoint(5, values, state)) / name).read_bytes()


def _odd_tensors() -> bytes:
    kinds = (torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.uint8)
    return safetensors.torch.save({str(kind): torch.ones(3, dtype=kind) for kind in kinds})


def _images() -> list[bytes]:
    found = []
    for kind, modes in {
        "PNG": ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"),
        "JPEG": ("L", "RGB", "CMYK"),
        "WEBP": ("RGB", "RGBA"),
        "BMP": ("1", "L", "P", "RGB"),
        "GIF": ("P",),
    }.items():
        for mode in modes:
            out = io.BytesIO()
            Image.linear_gradient("L").resize((12, 10)).convert(mode).save(out, kind)
            found.append(out.getvalue())
    if can_read_heic():
        out = io.BytesIO()
        Image.linear_gradient("L").resize((64, 48)).save(out, "HEIF")
        found.append(out.getvalue())
    return found


def _events() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        writer = SummaryWriter(folder)
        writer.add_scalar("loss/train", 0.5, 1)
        writer.add_image("attention", torch.rand(3, 4, 4), 1)
        writer.close()
        (path,) = Path(folder).iterdir()
        return path.read_bytes()
