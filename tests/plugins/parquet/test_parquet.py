"""Columns, copies in the cache, and classes of Parquet files.

The tests of every format, in ``tests/runner/data/test_formats.py``, read Parquet files, too.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.commands import printed, said
from tests.plugins.parquet import writer
from tests.runner.data.own_pictures import draw_pictures, png
from vitcli import plugin
from vitcli.core.data.source import DataSet
from vitcli.core.spec import DATA_READERS, DataSpec
from vitcli.runner.data.find import cache_root
from vitcli.runner.data.load import load_data
from vitcli.runner.data.picture_reader import list_pictures
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.run.folder import _parsed_before

GENERATOR = np.random.default_rng(1)


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("VITCLI_CACHE", str(tmp_path / "cache"))


def load(name: str) -> DataSet:
    return load_data(DataSpec(name=name), offline=True)


PLAIN = [0, 1] * 10
COARSE = {"fine_label": PLAIN, "coarse": PLAIN}
CLASS_LABEL = {"_type": "ClassLabel", "names": ["b", "a"]}


def write_columns(root: Path, features: object = None, **columns: Any) -> str:
    """Write a Parquet file of 20 pictures; ``features`` is what the library datasets notes."""
    files = [png(GENERATOR.integers(0, 256, (8, 8, 3), dtype=np.uint8)) for _ in range(20)]
    facts = features if isinstance(features, str) else json.dumps({"info": {"features": features}})
    return writer.write_table(root, facts={"huggingface": facts}, image=files, **columns)


@pytest.mark.parametrize(
    ("features", "columns", "classes", "noted"),
    [
        ({"label": CLASS_LABEL, "x": [1]}, {"label": PLAIN, "x": [[1]] * 20}, ("b", "a"), "x"),
        ({}, {"label": [b"x", b"y"] * 10}, ("x", "y"), ""),
        ({}, {"label": PLAIN, "split": ["train"] * 20}, ("0", "1"), "not used: split"),
        ({}, {"label": [0.0, 1.0, float("nan"), None] * 5}, ("0.0", "1.0"), "10 pictures"),
        ({}, {"label": PLAIN, "labels": PLAIN}, ("0", "1"), "not used: labels"),
        (dict.fromkeys(COARSE, CLASS_LABEL), COARSE, ("b", "a"), "not used: coarse"),
        ([1], {"label": PLAIN}, ("0", "1"), ""),
        ({"image": 3, "label": None}, {"label": PLAIN}, ("0", "1"), ""),
        ("[" * 100_000, {"label": PLAIN}, ("0", "1"), ""),
        ({}, {"label": [[0, 1], [1]] * 10}, (), "several"),
        ({"label": [CLASS_LABEL]}, {"label": [[0], [1]] * 10}, (), "several"),
        ({}, {"label": [{"a": 1}, {"a": 2}] * 10}, (), "several"),
        ({"label": {"names": 5}}, {"label": PLAIN}, (), "names"),
        ({"label": {"names": [["a"], "b"]}}, {"label": PLAIN}, (), "names"),
        ({"label": {"names": ["a", "a "]}}, {"label": PLAIN}, (), "two classes"),
        ({}, {"label": ["a", ""] * 10}, (), "row 2"),
        ({}, {"label": ["a", "b\0"] * 10}, (), "row 2"),
        ({}, {"label": [b"a", b"\xff"] * 10}, (), "decode"),
        ({}, {"label": lambda pa: pa.array([2**55, 1] * 10, pa.timestamp("ms"))}, (), "range"),
        ({}, {"label": lambda pa: pa.array([2**62, 1] * 10, pa.duration("s"))}, (), "large"),
    ],
)  # fmt: skip
def test_columns_of_parquet_are_read_or_refused_in_one_line(
    features, columns, classes, noted, tmp_path
):
    name = write_columns(tmp_path, features, **columns)
    if not classes:
        with pytest.raises(InputError, match=noted) as caught:
            load(name)
        assert "\n" not in str(caught.value)
        assert str(caught.value).startswith(str(tmp_path / "x"))
        return
    for _ in range(2):  # the second time from the cache
        folder = list_pictures(name)
        assert (folder.class_names, noted in " ".join(folder.notes)) == (classes, True)
        assert bool(folder.notes) == bool(noted)


@pytest.mark.parametrize("file", ["facts.json", "labels.csv", "all-0/00000003"])
@pytest.mark.parametrize("content", [b"", b"{}", None])
def test_a_damaged_copy_of_parquet_in_the_cache_is_made_again(file, content, tmp_path):
    name = write_columns(tmp_path, label=PLAIN)
    before = load(name).data_hash
    (copy,) = (cache_root() / "unpacked").glob(f"*/{file}")
    copy.unlink() if content is None else copy.write_bytes(content)
    assert load(name).data_hash == before
    assert copy.stat().st_size > 2


def test_the_copy_of_parquet_is_synced_before_it_is_used(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr("os.sync", lambda: seen.append([*cache_root().rglob("facts.json")]))
    load(write_columns(tmp_path, label=PLAIN))
    assert seen == [[]], "the facts, which make the copy valid, come after the sync"


def test_a_file_of_parquet_that_would_fill_the_disk_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("vitcli.plugins.parquet.reader.MAX_BYTES", 2**20)
    bomb = {"image": lambda pa: pa.array([bytes(2**20)] * 20).dictionary_encode()}
    name = writer.write_table(tmp_path, label=PLAIN, **bomb)
    with pytest.raises(InputError, match="MiB"):
        load(name)
    assert not [*(cache_root() / "unpacked").glob("unpacking-*")]


def test_files_of_parquet_have_the_same_classes(tmp_path, monkeypatch):
    pictures = draw_pictures()
    name, file = writer.write_pictures(tmp_path / "own", pictures), "test-00000-of-00001.parquet"
    monkeypatch.setattr(writer, "CLASSES", ("Löwe 🦁", "dog", "犬"))
    other = writer.write_pictures(tmp_path / "other", pictures).removeprefix("parquet:")
    Path(other, file).replace(tmp_path / "own" / file)
    with pytest.raises(InputError, match="'cat' is a class of some of the files only"):
        list_pictures(name)


@pytest.mark.parametrize(
    "names", ["{}-0.parquet", "beans-{}.parquet", "my_{}.0.parquet", "split={}/0.parquet"]
)
def test_the_split_is_a_word_in_the_names_of_files_and_folders(names, tmp_path):
    for split in ("train", "test"):
        file = tmp_path / names.format(split)
        file.parent.mkdir(exist_ok=True)
        assert list_pictures(write_columns(file.parent, label=PLAIN)).num_test is None
        (file.parent / "x.parquet").rename(file)
    assert list_pictures(f"parquet:{tmp_path}").num_test == 20
    for number, file in enumerate(sorted(tmp_path.rglob("*.parquet"))):
        file.rename(tmp_path / f"pregnancy_test_{number}.parquet")
    assert list_pictures(f"parquet:{tmp_path}").num_test is None


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr("vitcli.runner.errors.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install '\.\[hub\]'"):
        load("parquet:x")


def test_data_of_a_plugin_that_is_off_names_the_plugin(copy_of_run, tmp_path, monkeypatch):
    name = writer.write_pictures(tmp_path / "own", draw_pictures())
    run = copy_of_run(Path("runs/run"), {"data.name": name, "data.resize": 8, "train.epochs": 1})
    monkeypatch.setenv(plugin.VARIABLE, "no:parquet")
    monkeypatch.setattr(DATA_READERS, "data", {**DATA_READERS.built_in})
    _parsed_before.clear()
    missing = "needs the plugin parquet, which is off"
    (row,) = json.loads(printed("runs", "ls", "--json"))["runs"]
    assert (row["state"], row["reason"]) == ("finished", missing)
    assert missing in said(2, "eval", run)
    for words in (["train", "--data", name], ["train", "-s", f"data.name={name}"]):
        assert missing in said(2, *words, "--dry-run")
    for command in ("info", "check", "get", "rm"):
        assert missing in said(2, "data", command, name)
    assert "needs the plugin hf" in said(2, "data", "get", "hf:beans")
