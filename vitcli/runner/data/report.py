"""What ``vitcli data`` tells: which data sets there are, and what is in one of them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from vitcli.core.data.source import DataSet, Images
from vitcli.core.spec import DATA_SETS, DataSpec
from vitcli.runner.data.load import DataInfo, DataStatus, data_status, describe_data, load_data

NOTES = {
    "cifar10": (
        "The std that is widely copied for CIFAR-10, (0.2023, 0.1994, 0.2010), is the mean of the"
        " stds of the single images. The std of the data set, used here, is"
        " (0.2470, 0.2435, 0.2616)."
    )
}


@dataclass(frozen=True, kw_only=True)
class DataReport:
    """A data set that was read: where from, what it holds, images per class and split."""

    status: DataStatus
    data: DataSet
    counts: dict[str, tuple[int, ...]]
    note: str | None


def catalogue() -> list[tuple[DataInfo, DataStatus]]:
    """Every data set with a name; reads no image."""
    return [(describe_data(DataSpec(name=name)), data_status(name)) for name in DATA_SETS]


def report(name: str, data_dir: Path | None, on_message: Callable[[str], None]) -> DataReport:
    """Read a data set that is here; nothing is downloaded.

    Raises:
        ConfigError: No data set has this name.
        InputError: It is not here.
    """
    status = data_status(name, data_dir)
    data = load_data(DataSpec(name=name), data_dir=data_dir, offline=True, on_message=on_message)
    counts = {"train": per_class(data.train, data), "test": per_class(data.test, data)}
    return DataReport(status=status, data=data, counts=counts, note=NOTES.get(name))


def per_class(images: Images, data: DataSet) -> tuple[int, ...]:
    """Images of each class, in label order."""
    counts = torch.bincount(images.labels, minlength=data.num_classes)
    return tuple(counts.tolist())
