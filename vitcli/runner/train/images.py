"""The images of a training: read, and compared with those of a stored run."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from vitcli.core.data.source import DataSet
from vitcli.core.spec import GENERATED, ExperimentSpec
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.experiment.config import Experiment, resize_setting
from vitcli.runner.experiment.resolve import fit_pictures
from vitcli.runner.run.folder import RunDir
from vitcli.runner.run.record import describe_other_images

Listener = Callable[[str], None]


def read_images(
    experiment: Experiment, read: Callable[..., DataSet], on_message: Listener
) -> tuple[ExperimentSpec, DataSet]:
    """Return the images of a training, and the spec with the size that they are read at.

    Own pictures of one size that the patches do not divide are read smaller. In a study they are
    not, because its variants could then see different images.

    Args:
        experiment: The experiment to train.
        read: Reads a data set from its spec, as ``load_data``.
        on_message: Receives messages for the user.
    """
    spec = experiment.spec
    read = partial(read, extras=spec.task.extras, seed=spec.seed)
    data = read(spec.data, on_message=on_message)
    if experiment.variant is not None:
        return spec, data
    fitted = fit_pictures(spec, data.img_size)
    if fitted == spec or fitted.data.resize is None:
        return spec, data
    (height, width), size = data.img_size, fitted.data.resize
    on_message(
        f"note: patches of {getattr(spec.model, 'patch_size', 1)} pixels do not divide"
        f" {height}x{width}; the pictures are resized to {size[0]}x{size[1]}"
        f" ({resize_setting(size)})"
    )
    return fitted, read(fitted.data)


def without_test_images(data: DataSet) -> DataSet:
    """Return a data set whose validation images take the place of the test images.

    So nothing in a training, not even a picture of it, can see a test image.

    Raises:
        ConfigError: There are no validation images.
    """
    if data.val is None:
        raise ConfigError("data.val_split is 0; a training without test images measures that split")
    return replace(data, test=data.val, test_names=())


def refuse_other_data(run: RunDir, data: DataSet) -> None:
    """Refuse to continue a run on other images than its own.

    Raises:
        InputError: The images differ.
    """
    if problem := describe_other_images(run.read("meta.json").get("data_hash"), data):
        restore = "restore" if data.name in GENERATED else "point --data-dir at"
        raise InputError(
            f"{run.path} was trained on {problem}; start over with --rerun, or {restore} the images"
            " of the training"
        )


def refuse_other_pretraining(run: RunDir, data: DataSet) -> None:
    """Refuse to start from a pre-training on other images.

    Raises:
        InputError: The images differ.
    """
    if problem := describe_other_images(run.read("meta.json").get("data_hash"), data):
        raise InputError(
            f"{run.path} was trained on {problem}; pre-train again: {run.command('runs rm')}"
        )
