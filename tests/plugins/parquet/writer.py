"""Parquet files of pictures."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.runner.data.own_pictures import CLASSES, Picture, png


def write_table(root: Path, name: str = "x.parquet", facts: object = None, **columns: Any) -> str:
    pa = pytest.importorskip("pyarrow", reason="needs the extra hub")
    from pyarrow import parquet

    values = {key: make(pa) if callable(make) else make for key, make in columns.items()}
    table = pa.table(values).replace_schema_metadata(facts)
    parquet.write_table(table, root / name, compression="zstd")
    return f"parquet:{root / name}"


def write_pictures(root: Path, pictures: list[Picture]) -> str:
    feature = {"_type": "ClassLabel", "names": CLASSES}
    features = {"image": {"_type": "Image"}, "label": feature}
    facts = {"huggingface": json.dumps({"info": {"features": features}})}
    root.mkdir()
    for split in {each.split for each in pictures}:
        own = [each for each in pictures if each.split == split]
        write_table(
            root,
            f"{split or 'data'}-00000-of-00001.parquet",
            facts,
            image=[{"bytes": png(each.pixels), "path": None} for each in own],
            label=[each.label for each in own],
            group=[each.group for each in own],
        )
    return f"parquet:{root}"


def write_texts(root: Path, files: list[bytes], texts: list[str]) -> str:
    return write_table(root, image=files, label=texts)
