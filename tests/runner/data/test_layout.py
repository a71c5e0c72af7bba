"""Which folders are the training set, the test set and the classes of one's own pictures."""

import numpy as np
import pytest

from tests.runner.data.conftest import add, load
from vitcli.runner.data.folder import list_folder
from vitcli.runner.errors import InputError

pytestmark = pytest.mark.usefixtures("cache")


@pytest.mark.parametrize("name", ["val", "validation", "Val", "testing", "Test"])
def test_a_test_set_may_have_another_name(root, name):
    (root / "train").rename(root / "Train")
    (root / "test").rename(root / name)
    messages = [""]
    data = load(root, messages)
    assert (len(data.train), len(data.test)) == (16, 4)
    assert any(f"{name} is the test set" in text for text in messages) == (name != "Test")


def test_folders_beside_the_splits_are_not_silently_dropped(root):
    generator = np.random.default_rng(1)
    for name in ("valid/cat", "training/cat", "more"):
        add(root / name, 1, generator)
    (root / "empty").mkdir()
    folder = list_folder(root)
    assert (folder.num_train, folder.num_test, folder.num_val) == (16, 4, 1)
    unused = [note.partition(" is not used")[0] for note in folder.notes]
    assert unused == [str(root / name) for name in ("training", "more")]
    messages = [""]
    assert load(root, messages).val is None
    assert any("-s data.val_split=1" in text for text in messages)
    for wanted in (1, 0.2):
        data = load(root, val_split=wanted)
        assert (len(data.train), data.val.labels.tolist()) == (16, [0])


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


@pytest.mark.parametrize("kind", ["empty", "without classes", "dangling"])
def test_a_test_set_that_cannot_be_read_is_refused(root, kind):
    (root / "test").rename(root / "away")
    if kind == "dangling":
        (root / "test").symlink_to(root / "nowhere")
    else:
        (root / "test").mkdir()
    if kind == "without classes":
        add(root / "test", 4, np.random.default_rng(0))
    with pytest.raises(InputError, match=str(root / "test")):
        load(root)
