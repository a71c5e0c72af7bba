"""Which folders are the training set, the test set and the classes of one's own pictures."""

import numpy as np
import pytest

from tests.runner.data.own_pictures import add, draw_pets, load
from vitcli.runner.data.folder import list_folder
from vitcli.runner.errors import InputError

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture
def root(tmp_path):
    return draw_pets(tmp_path / "pets")


def test_val_stands_in_for_test_and_is_not_silently_dropped_beside_it(root):
    (root / "test").rename(root / "val")
    assert len(load(root).test) == 4
    (root / "test").mkdir()
    with pytest.raises(InputError, match="has no pictures"):
        load(root)
    add(root / "test" / "cat", 1, np.random.default_rng(1))
    messages = [""]
    assert len(load(root, messages).test) == 1
    assert any("val is not used" in text for text in messages)


@pytest.mark.parametrize("name", ["valid", "validation", "Val", "testing", "Test"])
def test_a_test_set_may_have_another_name(root, name):
    (root / "train").rename(root / "Train")
    (root / "test").rename(root / name)
    messages = [""]
    data = load(root, messages)
    assert (len(data.train), len(data.test)) == (16, 4)
    is_said = any(f"{name} is the test set" in text for text in messages)
    assert is_said == (name != "Test")


def test_folders_beside_the_splits_are_not_silently_dropped(root):
    generator = np.random.default_rng(1)
    add(root / "valid" / "cat", 1, generator)
    add(root / "training" / "cat", 1, generator)
    add(root / "more", 1, generator)
    (root / "empty").mkdir()
    folder = list_folder(root)
    assert (folder.num_train, folder.num_test) == (16, 4)
    unused = [note.partition(" is not used")[0] for note in folder.notes]
    assert unused == [str(root / name) for name in ("valid", "training", "more")]


@pytest.mark.parametrize("name", ["test", "val", "train", "Validation"])
def test_a_class_may_have_the_name_of_a_split(root, name):
    generator = np.random.default_rng(1)
    flat = root / "flat"
    for each in ("cat", "dog", name):
        add(flat / each, 3, generator)
    folder = list_folder(flat)
    assert folder.class_names == tuple(sorted(["cat", "dog", name]))
    assert (folder.num_train, folder.num_test) == (9, None)
    assert any(f"{name} is read as a class" in note for note in folder.notes)
    add(flat / "train" / "cat", 1, generator)
    if name != "train":  # then the classes are in train
        with pytest.raises(InputError, match="train needs a folder"):
            list_folder(flat)


def test_a_split_that_is_a_dangling_link_is_an_error(root):
    (root / "test").rename(root / "away")
    (root / "test").symlink_to(root / "nowhere")
    with pytest.raises(InputError, match="leads nowhere"):
        load(root)
