"""Export of a trained model into a file of another program, checked against the model."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch

from vitcli.runner.errors import CheckError, ConfigError
from vitcli.runner.files import commit, make_output_folder, require_utf8, scratch_folder
from vitcli.runner.run.folder import RunDir
from vitcli.runner.weights.card import write_card
from vitcli.runner.weights.formats import (
    Facts,
    Reloaded,
    read_onnx,
    read_pt2,
    read_safetensors,
    write_onnx,
    write_pt2,
    write_safetensors,
)
from vitcli.runner.weights.trained import TrainedModel, trained_model

LIMIT = 1e-4
"""Largest difference of an output between the trained model and its export."""
BATCHES = (1, 3)
"""Numbers of images at which an export is checked; neither is the number that was traced."""
OPSET = 18
"""Version of the operators of ONNX, by default."""


@dataclass(frozen=True, kw_only=True)
class Format:
    """A format: how it is written and read back, and what it needs."""

    suffix: str
    write: Callable[[TrainedModel, Path, int], Facts]
    """Takes the model, the file to write and the opset."""
    read: Callable[[Path, TrainedModel], Reloaded] | None = None
    """Returns the model in a file; None if the file holds no model."""
    extra: str = ""
    """The extra of vitcli that the format needs."""
    packages: tuple[str, ...] = ()
    """The packages of this extra."""

    def check(self, name: str, path: Path) -> None:
        """Check, before the model is read, that a file can be written."""
        if missing := [package for package in self.packages if find_spec(package) is None]:
            raise ConfigError(
                f"--format {name} needs the package {missing[0]}; in the checkout, type:"
                f" pip install '.[{self.extra}]'"
            )
        if path.suffix != self.suffix:
            raise ConfigError(f"-o {path}: the file of --format {name} ends with {self.suffix}")


FORMATS = {
    "onnx": Format(
        suffix=".onnx",
        write=write_onnx,
        read=read_onnx,
        extra="export",
        packages=("onnx", "onnxscript", "onnxruntime"),
    ),
    "safetensors": Format(suffix=".safetensors", write=write_safetensors, read=read_safetensors),
    "pt2": Format(suffix=".pt2", write=write_pt2, read=read_pt2),
    "card": Format(suffix=".md", write=write_card, extra="hub", packages=("huggingface_hub",)),
}
"""Name -> format, as ``--format`` takes it."""


@dataclass(frozen=True, kw_only=True)
class Export:
    """A file that was written."""

    file: Path
    size: int
    """In bytes."""
    output: str
    """What the file computes: ``logits`` or ``features``."""
    difference: float | None = None
    """Largest absolute difference from the trained model; None if it was not measured."""
    facts: Facts = field(default_factory=dict)


def default_file(run: RunDir, name: str) -> Path:
    run_name = run.path.name if Path(run.name).is_absolute() else run.name
    return Path(run_name.replace("/", "-") + FORMATS[name].suffix)


def export_run(
    run: RunDir, name: str, file: Path | None = None, *, check: bool = True, opset: int = OPSET
) -> Export:
    """Write the model of a run. An export that differs from the model leaves no file.

    Args:
        file: The file to write; by default ``default_file``.
    """
    form, path = FORMATS[name], file or default_file(run, name)
    form.check(name, path)
    require_utf8(path)
    model = trained_model(run)
    make_output_folder(path.parent)
    with scratch_folder() as scratch, torch.no_grad():
        draft = scratch / path.name
        facts = form.write(model, draft, opset)
        difference = None
        if check and form.read is not None:
            difference = compare(model, partial(form.read, draft, model), path)
        content = draft.read_bytes()
    commit(path, content)
    return Export(
        file=path, size=len(content), output=model.output, difference=difference, facts=facts
    )


def compare(model: TrainedModel, read: Callable[[], Reloaded], path: Path) -> float:
    """Return the largest absolute difference between the outputs of a model and of its export."""
    largest = 0.0
    try:
        reloaded = read()
        outputs = [(model.images(count), reloaded(model.images(count))) for count in BATCHES]
    except Exception as error:  # each runtime has exceptions of its own
        reason = str(error).strip().partition("\n")[0]
        raise CheckError(f"{path}: not written: it cannot be computed: {reason}") from error
    for images, found in outputs:
        count, wanted = len(images), model.module(images)
        fits = found.shape == wanted.shape
        difference = (found - wanted).abs().max().item() if fits else float("nan")
        if not difference <= LIMIT:  # NaN fails, too
            raise CheckError(
                f"{path}: not written: {model.output} of {count} images differ by"
                f" {difference:.1e} from the trained model, limit {LIMIT:.0e}"
            )
        largest = max(largest, difference)
    return largest
