"""The images of a training: read, and compared with those of a stored run."""

from collections.abc import Callable
from dataclasses import replace

from vitcli.core.data.source import DataSet
from vitcli.core.spec import GENERATED, ExperimentSpec
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.experiment.config import Experiment
from vitcli.runner.experiment.resolve import fit_pictures, resize_setting, resolve, shrink_batch
from vitcli.runner.run.record import RunRecord, describe_other_images
from vitcli.runner.text import listed, quantity

Listener = Callable[[str], None]


def read_images(
    experiment: Experiment, read: Callable[..., DataSet], on_message: Listener
) -> tuple[ExperimentSpec, DataSet]:
    """Return the images of a training, and the spec with the size that they are read at.

    Own pictures of one size that the patches do not divide are read smaller. In a study they are
    not, because its variants could then see different images.
    """
    spec = experiment.spec
    data = read(spec.data, on_message=on_message)
    if experiment.variant is not None:
        return spec, data
    fitted = fit_pictures(spec, data.img_size)
    if fitted == spec or fitted.data.resize is None:
        return spec, data
    (height, width), size = data.img_size, fitted.data.resize
    on_message(
        f"note: patches of {spec.model.patch_side} pixels do not divide"
        f" {height}x{width}; the pictures are resized to {size[0]}x{size[1]}"
        f" ({resize_setting(size)})"
    )
    return fitted, read(fitted.data)


def resolve_images(
    experiment: Experiment,
    read: Callable[..., DataSet],
    on_message: Listener,
    old: RunRecord | None,
    without_test: bool,
) -> tuple[ExperimentSpec, DataSet]:
    """Return the resolved spec of a training and its images."""
    kept = old.spec.train.batch_size if old else None
    asked, data = read_images(experiment, read, on_message)
    if without_test:
        if data.val is None:
            raise ConfigError(
                "data.val_split is 0; a training without test images measures that split"
            )
        data = replace(data, test=data.val)  # so not even a picture can show a test image
    spec = shrink_batch(experiment, resolve(asked, data), len(data.train), on_message, kept=kept)
    if old:
        refuse_other_data(old, data)
    else:
        refuse_leaks(spec, data)
    return spec, data


def refuse_leaks(spec: ExperimentSpec, data: DataSet) -> None:
    """Refuse to start a training whose test images are training images, too."""
    if data.leaks and not spec.data.allow_leaks:
        raise InputError(
            f"{quantity(len(data.leaks), 'test picture')} of {len(data.test):,} found in the"
            " training set, too, or in one of its groups, so the test accuracy would be too high:"
            f"\n{listed(data.leaks)}\n"
            "Remove them from one side, or train in spite of them: --allow-leaks, and in a study"
            " -s data.allow_leaks=true"
        )


def refuse_other_data(record: RunRecord, data: DataSet) -> None:
    restore = "restore" if data.name in GENERATED else "point --data-dir at"
    advice = f"start over with --rerun, or {restore} the images of the training"
    refuse_other_images(record, data, advice)


def refuse_other_images(record: RunRecord, data: DataSet, advice: str) -> None:
    if problem := describe_other_images(record.data_hash, data):
        raise InputError(f"{record.path} was trained on {problem}; {advice}")
