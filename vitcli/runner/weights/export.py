"""Export of a trained model into a file of another program, checked against the model."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from vitcli.runner.errors import CheckError, ConfigError
from vitcli.runner.evaluate.weights import load_model
from vitcli.runner.files import commit, make_output_folder, require_utf8, scratch_folder
from vitcli.runner.run.folder import RunDir
from vitcli.runner.weights.card import write_card
from vitcli.runner.weights.formats import (
    Facts,
    Reloaded,
    TrainedModel,
    read_onnx,
    read_pt2,
    read_safetensors,
    write_onnx,
    write_pt2,
    write_safetensors,
)

LIMIT = 1e-4
"""Largest difference of an output between the trained model and its export."""
BATCHES = (1, 3)
"""Numbers of images at which an export is checked; neither is the number that was traced."""


@dataclass(frozen=True)
class Format:
    """A format: how it is written and read back, and the extra of vitcli that it needs."""

    suffix: str
    write: Callable[[TrainedModel, Path], Facts]
    read: Callable[[Path, TrainedModel], Reloaded] | None = None
    """Returns the model in a file; None if the file holds no model."""
    extra: str = ""
    packages: tuple[str, ...] = ()
    """The packages of this extra."""


FORMATS = {
    "onnx": Format(".onnx", write_onnx, read_onnx, "export", ("onnx", "onnxscript", "onnxruntime")),
    "safetensors": Format(".safetensors", write_safetensors, read_safetensors),
    "pt2": Format(".pt2", write_pt2, read_pt2),
    "card": Format(".md", write_card, extra="hub", packages=("huggingface_hub",)),
}
"""Name -> format, as ``--format`` takes it."""


def export_run(
    run: RunDir, name: str, file: Path | None = None, *, check: bool = True
) -> dict[str, Any]:
    """Write the model of a run, and return what was written.

    That is the file, its size in bytes, what it computes (``logits`` or ``features``), its largest
    absolute difference from the trained model, and the facts of the format. An export that differs
    from the model leaves no file.
    """
    form = FORMATS[name]
    run_name = run.path.name if Path(run.name).is_absolute() else run.name
    path = file or Path(run_name.replace("/", "-") + form.suffix)
    if missing := [package for package in form.packages if find_spec(package) is None]:
        raise ConfigError(
            f"--format {name} needs the package {missing[0]}; in the checkout, type:"
            f" pip install '.[{form.extra}]'"
        )
    if path.suffix != form.suffix:
        raise ConfigError(f"-o {path}: the file of --format {name} ends with {form.suffix}")
    require_utf8(path)
    model = TrainedModel(run=run, spec=run.spec(), encoder=load_model(run))
    make_output_folder(path.parent)
    with scratch_folder() as scratch, torch.no_grad():
        draft = scratch / path.name
        facts = form.write(model, draft)
        difference = compare(model, form.read, draft, path) if check and form.read else None
        content = draft.read_bytes()
    commit(path, content)
    about = {"file": str(path), "bytes": len(content), "output": model.output}
    return about | {"difference": difference} | facts


def compare(
    model: TrainedModel, read: Callable[[Path, TrainedModel], Reloaded], draft: Path, path: Path
) -> float:
    """Return the largest absolute difference between the outputs of a model and of its export."""
    module = model.as_output(model.encoder)
    try:
        reloaded = read(draft, model)
        batches = [model.images(count) for count in BATCHES]
        differences = [(reloaded(images) - module(images)).abs().max() for images in batches]
    except Exception as error:  # each runtime has exceptions of its own
        reason = str(error).strip().partition("\n")[0]
        raise CheckError(f"{path}: not written: it cannot be computed: {reason}") from error
    largest = torch.stack(differences).max().item()
    if not largest <= LIMIT:  # NaN fails, too
        raise CheckError(
            f"{path}: not written: its {model.output} differ by {largest:.1e} from those of the"
            f" trained model, limit {LIMIT:.0e}"
        )
    return largest
