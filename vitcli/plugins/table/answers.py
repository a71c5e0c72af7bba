"""What the trials of other programs say of each test image: files beside a table."""

from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path

import numpy as np

from vitcli.core.metrics.stored import correct
from vitcli.runner.errors import InputError
from vitcli.runner.files import read_bounded
from vitcli.runner.report.tables import csv_text, read_csv
from vitcli.runner.run.predictions import (
    BROKEN_ARCHIVE,
    MAX_BYTES,
    Arrays,
    PerImage,
    read_array,
    read_outputs,
)
from vitcli.runner.text import printable, shorten

OTHER_ARRAYS = {"labels": "label", "predictions": "prediction", "predicted": "prediction"}
OF_IMAGES = {"correct", "label", "prediction", "probability", "logits"}
FLAGS = {"true": "1", "false": "0"}


def read_images(folder: Path, files: Mapping[str, str]) -> dict[str, PerImage]:
    """Return the images by place. ``correct`` may hold any number whose mean is the score."""
    images: dict[str, PerImage] = {}
    names: list[tuple[str, ...]] = []
    for place, text in files.items():
        name, colon, inside = text.partition(".npz:")
        file = f"{name}.npz" if colon else text
        path = folder / file
        try:
            path = path if path.exists() else Path(file)
            image, own = _per_image(_arrays(path, inside))
        except BROKEN_ARCHIVE as error:
            raise InputError(
                f"{place}: {shorten(printable(path), 300)} cannot be read as predictions; write"
                " 'correct', or 'label' and 'prediction', one number for each image:"
                f" {shorten(printable(error), 300)}"
            ) from error
        names = names if images else own
        first = next(iter(images.values()), image)
        is_same = own == names and len(image.scores) == len(first.scores)
        if not is_same or not np.array_equal(image.labels, first.labels):
            raise InputError(
                f"{place}: {path} has other images or labels than the first file, or another order;"
                " sort its images like those; a column 'id' names them, or all further columns do"
            )
        images[place] = image
    return images


def are_right(images: Mapping[str, PerImage]) -> bool:
    """Return whether each score says that an answer is right, or wrong."""
    return bool(images) and all(np.isin(image.scores, (0, 1)).all() for image in images.values())


def _arrays(path: Path, inside: str) -> Arrays:
    suffix = path.suffix.lower()
    if suffix == ".npy":
        return {"correct": read_array(read_bounded(path, MAX_BYTES))}
    if suffix not in (".csv", ".tsv"):
        return read_outputs(read_bounded(path, MAX_BYTES), inside)
    table = read_csv(csv_text(path), str(path), exact=True)
    columns = zip(*([cell.strip() for cell in row] for _, row in table), strict=True)
    return {name: np.array([FLAGS.get(x.lower(), x) for x in cells]) for name, *cells in columns}


def _per_image(arrays: Arrays) -> tuple[PerImage, list[tuple[str, ...]]]:
    known = {
        OTHER_ARRAYS.get(name.casefold(), name.casefold()): array for name, array in arrays.items()
    }
    texts = {name for name in OF_IMAGES & known.keys() if known[name].dtype.kind == "U"}
    known |= {name: known[name].astype(np.float64) for name in texts}  # of a CSV file
    labels = np.asarray(known.get("label", ()), np.int64)
    scores = known.get("correct")
    if scores is None:
        if "label" not in known or not {"prediction", "logits"} & known.keys():
            raise ValueError(f"it has only {', '.join(arrays)}")
        scores, labels = correct(known | {"labels": labels})
    image = PerImage(scores, labels)
    if not image.is_sound:
        raise ValueError("no numbers, or not one for each image")
    naming = {"id"} & known.keys() or known.keys() - OF_IMAGES
    others = [known[name] for name in sorted(naming) if known[name].shape == scores.shape]
    names = [*zip(*(array.astype(str).tolist() for array in others), strict=True)]
    return image, names


def results_of(
    name: str,
    scores: Mapping[str, Decimal],
    images: Mapping[str, PerImage],
    files: Mapping[str, str],
) -> dict[str, dict[str, float]]:
    """Return the numbers of each trial. Its score is the mean of its predictions, if known."""
    results = {place: {name: float(score)} for place, score in scores.items()}
    for place, image in images.items():
        if not _is_mean(scores[place], image):
            raise InputError(
                f"{place}: the score is {scores[place]}, but {files[place]} gives {image.mean:.6g};"
                " correct the score, write more of its digits, or leave out the column predictions"
            )
        results[place] = {name: image.mean, "num_test": len(image.scores)}
    return results


def _is_mean(score: Decimal, image: PerImage) -> bool:
    last_digit = 10.0 ** int(score.as_tuple().exponent)
    limit = min(last_digit / 2, max(0.005, abs(image.mean) / 100)) + 1e-6
    return abs(float(score) - image.mean) <= limit
