"""A trained run as an object of the Python interface. Axes: N test images, K classes."""

from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from vitcli.core.metrics.stored import check_predictions
from vitcli.core.models.image_model import ImageModel
from vitcli.core.spec import ExperimentSpec
from vitcli.runner.errors import InputError
from vitcli.runner.evaluate.weights import load_model
from vitcli.runner.files import read_bounded
from vitcli.runner.run.folder import RunDir, find_run
from vitcli.runner.run.predictions import MAX_BYTES, read_outputs


class Predictions(NamedTuple):
    """The outputs of a run for all test images, in the order of ``data.test``."""

    logits: NDArray[np.float32]
    """(N, K): one row per image, one column per class."""
    labels: NDArray[np.int64]
    """(N,): the index of the true class."""


class Run:
    """One run: the content of its folder.

    Each attribute reads its file when it is used, so a run that still trains can be watched. It
    raises UserError if the file is missing or damaged.
    """

    def __init__(self, folder: RunDir) -> None:
        self._folder = folder

    def __repr__(self) -> str:
        return f"<vitcli.Run {self.name}: {self.status['state']}>"

    @property
    def path(self) -> Path:
        """Return the run folder."""
        return self._folder.path

    @property
    def name(self) -> str:
        """Return the name that commands accept, such as ``quickstart/train/seed0``."""
        return self._folder.name

    @property
    def spec(self) -> ExperimentSpec:
        """Return the configuration, with fields such as ``spec.model.depth``."""
        return self._folder.spec()

    @property
    def status(self) -> dict[str, Any]:
        """Return ``state`` (such as finished or running), ``step`` and ``reason``."""
        return self._folder.status()

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """Return one record per epoch, oldest first, with ``step``, ``epoch``, ``train_loss``, ...

        The list is empty before the first epoch, and for imported weights.
        """
        return self._folder.metrics()

    @property
    def result(self) -> dict[str, Any]:
        """Return the final numbers, such as ``test_accuracy`` (0 to 1) and ``parameters``."""
        result = self._folder.read("result.json")
        if not result:
            self._refuse("result.json")
        return result

    @property
    def predictions(self) -> Predictions:
        """Return the stored logits (N, K) and labels (N,) of the test images, as NumPy arrays."""
        path = self.path / "predictions.npz"
        if not path.is_file():
            self._refuse(path.name)
        try:
            arrays = check_predictions(read_outputs(read_bounded(path, MAX_BYTES)))
            return Predictions(*(array.copy() for array in arrays))  # they can be written to
        except (OSError, ValueError, KeyError) as error:
            raise InputError(f"{path}: {error}") from error

    def model(self, device: str = "cpu", step: int | None = None) -> ImageModel:
        """Return the trained model in eval mode, as ``load_model`` does.

        Args:
            device: The device of the model: cpu, cuda, mps or auto.
            step: The step of the checkpoint; by default the last.
        """
        return load_model(self._folder, device, step)

    def _refuse(self, name: str) -> NoReturn:
        state = self.status["state"]
        raise InputError(f"{self.path}: no readable {name} (the run is {state})")


def load_run(run: str | Path) -> Run:
    """Return a run, to read its configuration, metrics, result, predictions and model.

    Args:
        run: A run folder, a name under runs/ such as ``quickstart``, or a bundled model.

    Raises:
        UserError: There is no such run, or the name means several runs.
    """
    return Run(find_run(str(run)))
