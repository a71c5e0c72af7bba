"""The content of ``vitcli data ls`` and ``vitcli data info``."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from vitcli.core.data.source import DataSet, Images
from vitcli.core.spec import DATA_SETS, DataSpec
from vitcli.runner.data.find import refuse_unused_folder
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
    """A data set that was read: its place, its images, and their number per split and class."""

    status: DataStatus
    data: DataSet
    counts: dict[str, tuple[int, ...]]
    note: str | None


def list_data_sets() -> list[tuple[DataInfo, DataStatus]]:
    """Return all named data sets with their status. Reads no image."""
    return [(describe_data(DataSpec(name=name)), data_status(name)) for name in DATA_SETS]


def read_report(
    name: str,
    data_dir: Path | None,
    on_message: Callable[[str], None],
    *,
    skip_bad: bool = False,
) -> DataReport:
    """Read a data set from disk, without a download.

    Raises:
        ConfigError: There is no data set of this name, or ``data_dir`` would be ignored.
        InputError: The data set is not on disk.
    """
    refuse_unused_folder(name, data_dir)
    status = data_status(name, data_dir)
    spec = DataSpec(name=name, skip_bad=skip_bad)
    data = load_data(spec, data_dir=data_dir, offline=True, on_message=on_message)
    counts = {"train": count_by_class(data.train, data), "test": count_by_class(data.test, data)}
    return DataReport(status=status, data=data, counts=counts, note=NOTES.get(name))


def count_by_class(images: Images, data: DataSet) -> tuple[int, ...]:
    """Return the number of images per class, in label order."""
    counts = torch.bincount(images.labels, minlength=data.num_classes)
    return tuple(counts.tolist())
