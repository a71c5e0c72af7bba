"""A data set as the library datasets loads it from a folder of this machine."""

from pathlib import Path

import pytest

from tests.plugins.parquet import writer
from tests.runner.data.own_pictures import Picture


def write_pictures(root: Path, pictures: list[Picture]) -> str:
    datasets = pytest.importorskip("datasets", reason="needs the package datasets")
    writer.write_pictures(root, pictures)
    datasets.config.HF_DATASETS_CACHE = root / "cache"
    return f"hf:{root}"
