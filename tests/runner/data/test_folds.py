"""Folds: equal parts by content, copies together, each run on its own part."""

import hashlib
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from tests.runner.data.conftest import add, draw_pets, load, shoot, spec
from tests.runner.train.conftest import train
from vitcli.core.data.source import DataSet, Images, together
from vitcli.runner.data import folds
from vitcli.runner.data.arrays import canonical_order, hold_out
from vitcli.runner.data.folds import (
    count_different,
    divide,
    folds_of_probes,
    hold_out_groups,
    linked_images,
)
from vitcli.runner.data.load import describe_data, load_data
from vitcli.runner.engines.worker import SharedData
from vitcli.runner.errors import InputError
from vitcli.runner.evaluate.trained_run import load_trained_run
from vitcli.runner.run.record import read_record
from vitcli.runner.text import ignore_message

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture
def pets(tmp_path):
    generator = np.random.default_rng(1)
    add(tmp_path / "pets" / "cat", 11, generator)
    add(tmp_path / "pets" / "dog", 7, generator)
    return tmp_path / "pets"


def fold(root, seed: int, on_message=ignore_message, **options) -> DataSet:
    return load_data(spec(root, **{"folds": 3} | options), seed=seed, on_message=on_message)


def contents(images) -> list[bytes]:
    return sorted(image.numpy().tobytes() for image in images.pixels)


def test_each_picture_is_tested_once_and_each_class_is_spread_evenly(pets):
    whole = load(pets)
    parts = [fold(pets, seed) for seed in range(3)]
    everything = sorted(contents(whole.train) + contents(whole.test))
    assert sorted(image for part in parts for image in contents(part.test)) == everything
    counts = [torch.bincount(part.test.labels).tolist() for part in parts]
    assert sorted(counts) == [[3, 3], [4, 2], [4, 2]], "totals are even, too"
    for part in parts:
        assert sorted(contents(part.train) + contents(part.test)) == everything
        assert (part.data_hash, part.mean, part.std) == (whole.data_hash, whole.mean, whole.std)
        for images, names in ((part.train, part.train.names), (part.test, part.test.names)):
            for pixels, name in zip(images.pixels, names, strict=True):
                with Image.open(pets / name) as picture:
                    assert np.array_equal(np.array(picture), pixels.permute(1, 2, 0))


def test_the_next_seeds_divide_again_and_only_the_content_counts(pets):
    parts = [contents(fold(pets, seed).test) for seed in range(6)]
    assert not {*map(tuple, parts[:3])} & {*map(tuple, parts[3:])}
    for folder in pets.iterdir():
        for i, path in enumerate(sorted(folder.iterdir())):
            path.rename(path.with_name(f"other-{99 - i}.png"))
    assert [contents(fold(pets, seed).test) for seed in range(6)] == parts


def test_copies_are_in_one_part_turned_ones_and_those_of_another_class_too(pets, monkeypatch):
    first, second, third = sorted((pets / "cat").iterdir())[:3]
    Image.open(first).rotate(90).save(pets / "cat" / "turned.png")
    (pets / "dog" / "twin.png").write_bytes(second.read_bytes())
    (pets / "cat" / "same.png").write_bytes(third.read_bytes())
    copies = [("cat/20-0.png", "cat/turned.png"), ("cat/20-1.png", "dog/twin.png")]
    for seed in range(9):
        tested = {*fold(pets, seed).test.names}
        for one, other in [*copies, (f"cat/{third.name}", "cat/same.png")]:
            assert (one in tested) == (other in tested)
    assert fold(pets, 0).data_hash == load(pets).data_hash
    pixels = together(load(pets).train, load(pets).test).pixels
    held = len(pixels) + 2 * len(folds.pairs_alike(pixels, in_colour=False))
    for most, is_same in ((held, True), (held - 1, False)):  # earlier versions lost links
        monkeypatch.setattr(folds, "MOST_ALIKE", most)
        hashes = {fold(pets, seed).data_hash for seed in range(3)}
        assert (hashes == {load(pets).data_hash}) is is_same
    learned = dict.fromkeys(load(pets).contents.values(), "train")
    with pytest.raises(InputError, match="has learned each of its pictures"):
        load_data(spec(pets, folds=3), seed=0, kept=learned)


@pytest.mark.parametrize(("fit", "is_marked"), [("pad", True), ("stretch", False), ("crop", False)])
def test_bars_do_not_make_pictures_look_alike(tmp_path, fit, is_marked):
    root, generator = tmp_path / "wide", np.random.default_rng(1)
    for name in ("cat", "dog"):
        add(root / name, 15, generator, (20, 40))
    fitted = {"fit": fit, "resize": (32, 32)}
    for _ in ("read", "cached"):
        data = load(root, messages := [""], **fitted)
        assert "look" not in "".join(messages)
        images = together(data.train, data.test)
        assert linked_images(images, data.class_names, 3, {})[3] == 0
    assert load(root, val_split=6, **fitted).data_hash == data.data_hash
    for path in sorted(root.rglob("*.png"))[::5]:
        Image.open(path).rotate(90, expand=True).save(path.with_name(f"turned-{path.name}"))
    whole, hashes = load(root, **fitted), set[str]()
    for seed in range(3):
        data = fold(root, seed, **fitted)
        hashes.add(data.data_hash)
        turned = {name for name in data.test.names if "turned-" in name}
        others = {name.replace("turned-", "") for name in turned}
        assert fit == "crop" or others <= {*data.test.names}
    assert len(hashes) == 1
    assert (hashes != {whole.data_hash}) is is_marked, "runs of earlier versions, see ``take_fold``"


def test_folds_of_probes_divide_no_copies_and_no_group_and_are_not_needed_without_them(pets):
    data = load(pets)
    assert folds_of_probes(data.train, data, 2) == (None, "")
    first, second = sorted((pets / "cat").iterdir())[:2]
    Image.open(first).rotate(90).save(pets / "cat" / "turned.png")
    (pets / "dog" / "twin.png").write_bytes(second.read_bytes())
    data = load(pets)
    images = together(data.train, data.test)

    def parts(data: DataSet, folds: int) -> dict[str, int]:
        found, _ = folds_of_probes(images, data, folds)
        return dict(zip(images.names, found.tolist(), strict=True))

    found = parts(data, 3)
    assert found[f"cat/{first.name}"] == found["cat/turned.png"]
    assert found[f"cat/{second.name}"] == found["dog/twin.png"]
    assert sorted({*found.values()}) == [0, 1, 2]
    assert folds_of_probes(images, replace(data, contents={}), 3)[0] is None, "no own pictures"
    assert {*parts(data, 9).values()} == {0}, "there are 8 dogs"
    assert count_different(images, data).tolist() == [12, 8]
    grouped = load(pets, group=r"(?:\w+/)(?:.*(\d)\.png)?")
    assert count_different(images, grouped).tolist() == [10, 7], "twins join groups"
    found = parts(grouped, 3)
    assert all(found[f"cat/20-{i}.png"] == found[f"dog/20-{i}.png"] for i in range(7))


def test_pictures_that_all_look_alike_are_divided_all_the_same(tmp_path):
    generator = np.random.default_rng(2)
    scene = generator.integers(0, 236, (20, 20, 3))
    for name, count in (("empty", 6), ("full", 6)):
        folder = tmp_path / "camera" / name
        folder.mkdir(parents=True)
        for i in range(count):
            shot = (scene + generator.integers(0, 20, scene.shape)).astype(np.uint8)
            Image.fromarray(shot).save(folder / f"{i}.png")
    data = fold(tmp_path / "camera", 0)
    assert torch.bincount(data.test.labels).tolist() == [2, 2]
    assert data.data_hash == load(tmp_path / "camera").data_hash


def together_in(*sides) -> set[str]:
    """Return the classes whose groups of ``shoot`` each lie on one side."""
    homes: dict[str, set[int]] = {}
    for side, images in enumerate(sides):
        for name in images.names:
            homes.setdefault(name.partition("-")[0], set()).add(side)
    classes = {group.partition("/")[0] for group in homes}
    return classes - {group.partition("/")[0] for group, home in homes.items() if len(home) > 1}


@pytest.mark.parametrize("kind", ["noise", "copy"])
def test_a_class_that_looks_alike_leaves_copies_of_others_on_one_side(tmp_path, kind):
    camera, messages = tmp_path / "camera", list[str]()
    shoot(camera, {"fox": (2,) * 15, "hare": (3,) * 10}, "noise")
    shoot(camera, {"empty": (30,)}, kind)
    others = {"fox", "hare"} | ({"empty"} if kind == "copy" else set())
    data = load(camera, messages)
    assert together_in(data.train, data.test) == others
    assert data.test.labels.bincount(minlength=3)[1:].tolist() == pytest.approx([6, 6], abs=2)
    notes = [text for text in messages if "look alike are on one side, except some in" in text]
    assert ["'empty'" in note for note in notes] == [True] * (kind == "noise")
    data = load(camera, val_split=0.3)
    assert together_in(data.train, data.val) == others
    if kind == "copy":
        with pytest.raises(InputError, match=r"'empty' has only 1 different image"):
            fold(camera, 0)
        return
    before, hashes = load(camera).data_hash, set[str]()
    for seed in range(3):
        messages.clear()
        data = fold(camera, seed, messages.append)
        assert together_in(data.train, data.test) == others
        assert data.test.labels.bincount().tolist() == pytest.approx([10] * 3, abs=3)
        assert any("in the same fold, except some in 'empty', where" in text for text in messages)
        hashes.add(data.data_hash)
    assert len(hashes - {before}) == 1, "runs of earlier versions have learned other pictures"


@pytest.mark.parametrize(
    ("labels", "links", "equal", "groups", "unlinked"),
    [
        ("aaabbb", "01 12 34", "", "0 1 2 34 5", "a"),
        ("aaabbb", "01 12 05 34", "", "05 1 2 34", "a"),  # a link to another class stays
        ("aaabbbb", "03 31 14 42 56", "", "0 1 2 3 4 56", "a"),  # linked by another class alone
        ("aabbb", "02 12 34", "", "0 1 2 34", "a"),
        ("aabbb", "01 02 13 23", "02 13", "02 13 4", "a"),
        ("aabbbb", "23", "02 13", "02 13 4 5", "a"),
        ("aabbb", "01 23", "01", "01 23 4", ""),  # too few in any case
    ],
)
def test_links_are_cut_only_where_a_class_needs_groups(
    monkeypatch, labels, links, equal, groups, unlinked
):
    images, _ = grouped({"": (len(labels),)})
    for one, other in equal.split():
        images.pixels[int(one)] = images.pixels[int(other)]
    pairs = torch.tensor([(int(one), int(other)) for one, other in links.split()])
    monkeypatch.setattr(folds, "pairs_alike", lambda pixels, in_colour: pairs)
    images = replace(images, labels=torch.tensor(["ab".index(name) for name in labels]))
    found, _, names, _ = linked_images(images, "ab", 2, {}, may_be_short=True)
    rows = [np.flatnonzero(found == group) for group in range(max(found) + 1)]
    assert sorted("".join(map(str, row)) for row in rows) == groups.split()
    assert "".join(names) == unlinked


def turned(picture: Image.Image) -> Image.Image:
    return picture.rotate(90)


def saved_again(picture: Image.Image) -> Image.Image:
    smooth = Image.fromarray(np.array(picture.resize((60, 60))) // 2 + 40)
    return smooth.resize(picture.size)


@pytest.mark.parametrize("change", [turned, saved_again])
def test_validation_pictures_look_like_no_training_picture(pets, change):
    """As in the held-out fifth. Of pictures that all differ, the first of each class are taken."""
    plain = load(pets, val_split=0.3)
    assert plain.data_hash == load(pets).data_hash
    _, first = hold_out(load(pets).train, len(plain.val))
    assert plain.val.names == first.names
    for path in sorted(pets.rglob("*.png")):
        for number in range(2):
            change(Image.open(path)).save(path.with_name(f"{number}again-{path.name}"))
    whole = load(pets)
    _, first = hold_out(whole.train, round(0.3 * len(whole.train)))
    data = load(pets, val_split=0.3)

    def is_on_one_side(names) -> bool:
        pairs = ((name, re.sub(".again-", "", name)) for name in names)
        return all((other in names) or (other in whole.test.names) for _, other in pairs)

    assert not is_on_one_side(first.names), "else it proves nothing"
    assert is_on_one_side(data.val.names)
    assert is_on_one_side(data.train.names)
    assert {*data.train.names} | {*data.val.names} == {*whole.train.names}
    assert len(data.val) == pytest.approx(len(first), abs=2)
    assert data.val.labels.unique().tolist() == [0, 1]
    assert data.data_hash != whole.data_hash, "another split is other images"


SINGLE = (1,) * 50
"""Sizes of groups."""


@pytest.mark.parametrize("kind", ["noise", "copy"])
@pytest.mark.parametrize(
    ("sizes", "held"),
    [
        ({"fox": (35, *SINGLE[:15]), "hare": (35, *SINGLE[:15])}, (10, 10)),
        ({"fox": (15, *SINGLE[:35]), "hare": SINGLE}, (10, 10)),
        ({"fox": (45, *SINGLE[:5]), "hare": (9, 9, 9, 9, 9, 5)}, (5, 9)),
        ({"fox": (46, *SINGLE[:4]), "hare": SINGLE}, (4, 10)),
    ],
)
def test_a_large_group_stays_in_training_if_the_others_give_a_fifth(tmp_path, sizes, held, kind):
    shoot(tmp_path / "camera", sizes, kind)
    messages: list[str] = []
    data = load(tmp_path / "camera", messages)
    nearness = 1 if kind == "noise" else 3  # copies of one file count once
    assert data.test.labels.bincount().tolist() == pytest.approx([*held], abs=nearness)
    sides = [{name.partition("-")[0] for name in part.names} for part in (data.train, data.test)]
    assert not sides[0] & sides[1], "no group is divided"
    notes = [text for text in messages if "not a fifth of each class" in text]
    wanted = ["4 of 50 pictures of 'fox'"] * (held[0] == 4)
    assert [note.splitlines()[1].strip() for note in notes] == wanted


def test_groups_of_at_most_a_fifth_stay_in_the_part_of_earlier_versions(tmp_path):
    shoot(tmp_path / "camera", {"fox": (10, 4, *SINGLE[:36]), "hare": (2,) * 25}, "noise")
    data = load(tmp_path / "camera")
    images = together(data.train, data.test)
    images = images[canonical_order(images)]
    groups, digests, *_ = linked_images(images, data.class_names, 5, {})
    first = divide(groups, digests, images.labels.tolist(), 5, 0) == 0
    assert {*images[first].names} == {*data.test.names}
    assert {f"fox/0-{shot}.png" for shot in range(10)} <= {*data.test.names}


@pytest.mark.parametrize("count", [2, 3, 7, 8, 19, 100])
def test_different_pictures_are_held_out_by_their_content_alone(tmp_path, count):
    add(tmp_path / "pets" / "cat", count, np.random.default_rng(count))
    add(tmp_path / "pets" / "dog", 5, np.random.default_rng(0))
    messages: list[str] = []
    data = load(tmp_path / "pets", messages)
    cats = (tmp_path / "pets" / "cat").iterdir()
    in_order = sorted(cats, key=lambda path: hashlib.sha256(path.read_bytes()).digest())
    held = {f"cat/{path.name}" for path in in_order[: max(1, round(count / 5))]}
    assert {name for name in data.test.names if name.startswith("cat")} == held
    assert "not a fifth" not in "".join(messages)


def test_a_class_with_fewer_different_pictures_than_folds_is_refused(pets):
    first = sorted((pets / "dog").iterdir())[0]
    (pets / "dog" / "same.png").write_bytes(first.read_bytes())
    assert len(fold(pets, 0, folds=7).test)
    with pytest.raises(InputError, match=r"'dog' has only 7 different .* data.folds=7$") as caught:
        fold(pets, 0, folds=8)
    assert "\n" not in str(caught.value)


def test_a_test_set_of_its_own_is_left_out(tmp_path):
    root, messages = draw_pets(tmp_path / "pets"), []
    first = next((root / "train" / "cat").iterdir())
    (root / "test" / "cat" / "leak.png").write_bytes(first.read_bytes())
    data = fold(root, 1, messages.append, folds=4)
    assert (len(data.train), len(data.test)) == (12, 4)
    assert {name.partition("/")[0] for name in data.test.names} == {"train"}
    assert not any("accuracy is too high" in text for text in messages)
    info = describe_data(spec(root, folds=4))
    assert (info.num_train, info.num_test) == (12, 4)


def test_validation_images_come_from_the_other_parts(pets):
    data = fold(pets, 2, val_split=4)
    both = sorted(contents(data.train) + contents(data.val))
    assert both == contents(fold(pets, 2).train)
    info = describe_data(spec(pets, folds=3, val_split=4))
    assert (info.num_train, info.num_test) == (len(data.train), len(data.test))
    with pytest.raises(ValueError, match="seed"):
        load_data(spec(pets, folds=3))  # whose part would it be?


def test_the_trials_of_a_worker_share_images_only_within_a_fold(pets):
    shared = SharedData()
    read = [shared(spec(pets, folds=3), seed=seed) for seed in (0, 0, 1)]
    assert read[0] is read[1]
    assert contents(read[2].test) == contents(fold(pets, 1).test)
    plain = [shared(spec(pets), seed=seed) for seed in (0, 1)]
    assert plain[0] is plain[1]


def test_a_run_is_measured_on_its_own_part(tiny, pictures):
    changes = {"data.folds": 4, "seed": 6, "train.epochs": 1}
    run = train(tiny, "run", changes).folder
    wanted = load_data(run.spec().data, seed=6).test
    assert len(wanted) == read_record(run).result["num_test"] == 20
    options = {"device": "cpu", "data_dir": None, "offline": True, "on_message": ignore_message}
    evaluated = load_trained_run(str(run.path), step=None, limit_batches=None, **options).data
    looked_at = load_trained_run(run, num_images=4, **options).data
    for data in (evaluated, looked_at):
        assert torch.equal(data.test.pixels, wanted.pixels)
        assert not {*contents(data.test)} & {*contents(data.train)}
    labels = np.load(run.path / "predictions.npz")["labels"]
    assert labels.tolist() == wanted.labels.tolist()


def grouped(sizes: dict[str, tuple[int, ...]], seed: int = 0) -> tuple[Images, dict[str, str]]:
    """Return images of noise. ``sizes`` is group -> number of images of each class."""
    labels: list[int] = []
    groups: dict[str, str] = {}
    for group, counts in sizes.items():
        for label in (k for k, count in enumerate(counts) for _ in range(count)):
            groups[str(len(labels))] = group
            labels.append(label)
    pixels = np.random.default_rng(seed).integers(0, 256, (len(labels), 3, 4, 4), np.uint8)
    return Images(torch.from_numpy(pixels), torch.tensor(labels), names=tuple(groups)), groups


def test_groups_leave_each_class_a_training_picture():
    for prefix in "abcd":  # each name gives another order of the groups
        sizes = {f"{prefix}1": (1, 0), f"{prefix}2": (4, 1), f"{prefix}3": (0, 9)}
        images, groups = grouped(sizes)
        held_out = hold_out_groups(images, 0.2, groups)
        assert images.labels[~held_out].bincount(minlength=2).min() > 0, prefix
        assert held_out.any(), prefix
        again = hold_out_groups(grouped(sizes, seed=1)[0], 0.2, groups)
        assert held_out.equal(again), "the pixels depend on the size at which they are read"
    images, groups = grouped({"a": (5, 0), "b": (0, 5)})
    with pytest.raises(InputError, match=r"data\.group: no group can be held out"):
        hold_out_groups(images, 0.2, groups)


def test_groups_above_the_share_come_last_only_if_asked():
    numbers = set()
    for prefix in "abcdefgh":
        sizes = {f"{prefix}{number}": (1, 1) for number in range(35)}
        images, groups = grouped({f"{prefix} camera": (15, 0), **sizes})
        chosen = hold_out_groups(images, 0.2, groups, large_last=True)
        assert images.labels[chosen].bincount().tolist() == pytest.approx([10, 7], abs=3)
        assert not any("camera" in groups[name] for name in images[chosen].names)
        numbers.add(int(images.labels[hold_out_groups(images, 0.2, groups)].bincount()[0]))
    assert max(numbers) > 13, "else it proves nothing"
