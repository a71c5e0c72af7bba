"""An exported ONNX file as the object of ``vitcli.load_classifier``. No torch."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from vitcli.plugins.exports import recipe
from vitcli.runner.data.deep import MOST_SEEN, Seen, is_wide, look_at, notes_on
from vitcli.runner.data.pictures import (
    UNSET,
    Content,
    explain_errors,
    list_pages,
    open_picture,
    scaled,
)
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.evaluate.classifier import Classifier, threshold_of
from vitcli.runner.files import read_bounded, sha256
from vitcli.runner.text import Listener, printable

MAX_BYTES = 2**31
"""An ONNX file is not larger."""
BATCH_SIZE = 32


def load_onnx(
    path: Path,
    *,
    device: str,
    fit: str | None,
    reject: float | None,
    coverage: float | None,
    on_message: Listener,
) -> Classifier:
    """Return the classifier of an ONNX file; the arguments are those of ``load_classifier``."""
    if device not in ("auto", "cpu"):
        raise ConfigError(f"{path}: device {device}: an ONNX file is computed on the CPU; use auto")
    try:
        weights = sha256(read_bounded(path, MAX_BYTES))
        session, steps = recipe.load(path)
    except ImportError as error:
        raise ConfigError(f"{path} needs onnxruntime; type: pip install onnxruntime") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    except Exception as error:  # onnxruntime has kinds of its own
        what = printable(str(error).strip().partition("\n")[0])
        kind = "model of 'vitcli export --format onnx' that takes picture files"
        raise InputError(f"{path}: no {kind}: {what}") from error
    if "class_names" not in steps:
        raise InputError(f"{path}: it has no classes")
    how = steps["preprocessing"] | ({} if fit is None else {"fit": fit})
    if reject is not None and "temperature" not in steps:
        on_message(f"note: the probabilities are not calibrated: {path} has no temperature")

    seen = Seen()

    def prepare(picture: Content, name: str) -> np.ndarray:
        with explain_errors(name, picture):
            image = _opened(picture, printable(name), seen)
            return recipe.prepare(image, steps | {"preprocessing": how})

    def logits(inputs: Sequence[np.ndarray]) -> np.ndarray:
        rows: np.ndarray = session.run(["logits"], {"images": np.stack(inputs)})[0]
        return rows

    return Classifier(
        model=path.name,
        source=str(path),
        about=f"model {path}",
        weights=weights,
        names=steps["class_names"],
        prepare=prepare,
        logits=logits,
        batch_size=BATCH_SIZE,
        temperature=steps.get("temperature", 1.0),
        reject=reject,
        threshold=threshold_of(path, steps.get("thresholds", {}), coverage),
        options=how["fit"],
        notes=lambda: notes_on(seen),
    )


def _opened(picture: Content, name: str, seen: Seen) -> Image.Image:
    """Open a picture; refuse what a run refuses, and note what is not read."""
    image, facts = open_picture(picture), Seen()
    list_pages(image, picture, UNSET, facts)
    facts += look_at(image, picture, UNSET)
    if is_wide(image):
        wide = np.asarray(image)
        facts += [("high", wide.max().item()), ("top", scaled(wide, None).max().item())]
    if len(seen) < MOST_SEEN:
        seen += [(kind, number, name) for kind, number, *_ in facts]
    return image
