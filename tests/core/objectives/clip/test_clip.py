"""Contrastive training: its batches, what reaches which weight, and what it measures."""

import math
from collections import defaultdict

import pytest
import torch
from torch.testing import assert_close

from vitcli.core.data.source import DataSet, Images
from vitcli.core.objectives.clip.captions import CHANGES, KINDS
from vitcli.core.objectives.clip.clip import LARGEST_SCALE, ContrastiveTask
from vitcli.core.objectives.clip.superclasses import CIFAR10
from vitcli.core.objectives.clip.tokens import UNKNOWN, tokenize
from vitcli.core.spec import ExperimentSpec

NAMES = tuple(word for group in CIFAR10.values() for word in group.split())
SIZES = {"patch_size": 4, "embed_dim": 16, "depth": 1, "num_heads": 2, "pool": "mean"}


def experiment(batch_size: int = 8, **fields) -> ExperimentSpec:
    task = {"name": "clip", "text_dim": 16, "text_depth": 1, "joint_dim": 8} | fields
    name = "imagefolder:x" if fields.get("captions") == "folder" else "cifar10"
    values = {"mean": (0.5,) * 3, "std": (0.25,) * 3, "class_names": NAMES}
    return ExperimentSpec.model_validate(
        {
            "task": task,
            "model": SIZES | {"img_size": 8, "in_chans": 3, "num_classes": 10},
            "data": {"name": name, "augment": {"flip": "random"}} | values,
            "train": {"batch_size": batch_size},
        }
    )


def data_set(count: int = 40) -> DataSet:
    """Return images of one level each, so that a batch shows which images it holds."""
    level = torch.arange(count, dtype=torch.uint8) * (250 // count)
    pixels = level[:, None, None, None].expand(count, 3, 8, 8).contiguous()
    texts = [f"number {i}\nthe {i}".encode().ljust(16, b"\0") for i in range(count)]
    captions = torch.tensor([list(text) for text in texts], dtype=torch.uint8)
    images = Images(pixels, torch.arange(count) % 10, {"caption": captions})
    return DataSet(
        name="levels",
        class_names=NAMES,
        train=images,
        test=images,
        mean=(0.5,) * 3,
        std=(0.25,) * 3,
        data_hash="",
    )


def new_task(cls=ContrastiveTask, **fields) -> ContrastiveTask:
    spec = experiment(**fields)
    module = cls.make_module(spec)
    cls.read_data(module, spec, data_set())
    return cls(spec, module)


def drawn(task, data: DataSet, epoch: int = 0, first: int = 0) -> dict[int, list[int]]:
    """Return the level of each image in an epoch and the tokens of its caption."""
    found: dict[int, list[int]] = {}
    for batch in task.batches(data, epoch, first):
        levels = task.to_pixels(batch["images"])[:, 0, 4, 4].tolist()
        found |= dict(zip(levels, batch["tokens"].tolist(), strict=True))
    return found


def test_each_caption_of_a_folder_belongs_to_its_image():
    task, data = new_task(captions="folder"), data_set()
    assert {"number", "the", "0", "39"} <= {*task.module.text.words()}
    seen = defaultdict(set)
    for epoch in range(6):
        for level, tokens in drawn(task, data, epoch).items():
            words = task.module.text.words()
            first, number = (words[token - 4] for token in tokens if token > UNKNOWN)
            assert number == str(level // 6)
            seen[level].add(first)
    both = sum(words == {"number", "the"} for words in seen.values())
    assert both > 30, "several captions take turns"


def test_equal_captions_have_equal_numbers():
    task, data = new_task(batch_size=40), data_set()
    (batch,) = task.batches(data, 0)
    same = (batch["tokens"][:, None] == batch["tokens"]).all(-1)
    assert torch.equal(same, batch["caption"][:, None] == batch["caption"])
    assert same.sum() > 40


def test_a_held_out_class_is_not_trained_and_its_word_is_known():
    held = ("cat", "truck")
    task, data = new_task(captions="superclasses", held_out_classes=held), data_set()
    levels = {6 * i for i in range(40) if NAMES[i % 10] in held}
    shown = set().union(*(drawn(task, data, epoch) for epoch in range(10)))
    assert shown == {6 * i for i in range(40)} - levels
    assert {*held} <= {*task.module.text.words()}
    plain = new_task(captions="superclasses")
    assert {*drawn(plain, data)} > levels, "the control"


def test_an_image_has_the_transformation_that_its_caption_names():
    task, data = new_task(captions="transformations", batch_size=40), data_set()
    levels = torch.randint(256, (40, 3, 8, 8), dtype=torch.uint8)
    images = Images(levels, data.train.labels)
    (batch,) = task.batches(DataSet(**(vars(data) | {"train": images})), 0)
    pixels = task.to_pixels(batch["images"]).float()
    spread = (pixels.amax(1) - pixels.amin(1)).amax((1, 2))
    is_grey = batch["subject"] % len(CHANGES) == list(CHANGES).index("grey")
    assert is_grey.any()
    assert torch.equal(spread <= 1, is_grey)
    words = task.module.text.words()
    says_grey = (batch["tokens"] == 4 + words.index("grey")).any(1)
    assert torch.equal(says_grey, is_grey)


def test_the_scale_is_limited_after_a_step():
    task = new_task()
    start = task.module.logit_scale.item()
    assert_close(math.exp(start), 1 / 0.07)
    task.after_step()
    assert task.module.logit_scale.item() == start
    task.module.logit_scale.data.fill_(9.0)
    task.after_step()
    assert_close(task.module.logit_scale.exp().item(), LARGEST_SCALE)


def outputs_of(**fields):
    task = new_task(**fields)
    return task, task.outputs(task.module, data_set().test)


@pytest.mark.parametrize("captions", KINDS)
def test_all_recorded_numbers_are_measured(captions):
    task, outputs = outputs_of(captions=captions)
    measured = task.measure(outputs)
    assert {*task.spec.task.row.numbers} <= measured.keys()
    assert all(0 <= value <= 1 for value in measured.values())
    assert all(len(tensor) == 40 for tensor in outputs.values())
    assert {name.split("_")[0] for name in measured if name.startswith("l")} == (
        {"l1"} if captions == "transformations" else set()
    )


def test_a_perfect_text_encoder_reaches_the_top():
    task, outputs = outputs_of(captions="superclasses", held_out_classes=("cat", "truck"))
    perfect = torch.nn.functional.one_hot(outputs["labels"], 10).float()
    groups = torch.tensor(task.book.groups)[outputs["labels"]]
    outputs |= {"logits": perfect, "trained_logits": perfect, "caption_rank": torch.zeros(40)}
    outputs["group_logits"] = torch.nn.functional.one_hot(groups, 2).float()
    measured = task.measure(outputs)
    text_to_image = {name for name in measured if name.startswith("text_to_image")}
    assert {value for name, value in measured.items() if name not in text_to_image} == {1.0}
    among = {"l2_superclass_accuracy", "l2_accuracy_among_unseen", "l2_accuracy_among_all"}
    assert among <= measured.keys()
    swapped = outputs | {"logits": perfect[:, [*range(1, 10), 0]]}
    assert task.measure(swapped)["zero_shot_accuracy"] == 0
    with pytest.raises(ValueError, match="infinite"):
        task.measure(outputs | {"logits": perfect / 0})


def test_level_1_counts_pairs_and_both_words():
    task, outputs = outputs_of(captions="transformations")
    unseen, count = torch.tensor(task.book.unseen), len(CHANGES)
    assert torch.equal(outputs["unseen_subject"], unseen[outputs["labels"]])
    assert not {*outputs["seen_subject"].tolist()} & {*task.book.unseen}
    wanted = outputs["unseen_subject"]
    right_class = wanted // count * count + (wanted + 1) % count
    measured = task.measure(outputs | {"unseen_found": right_class, "seen_found": wanted * 0 - 1})
    assert measured["l1_unseen_class_accuracy"] == 1
    assert measured["l1_unseen_transformation_accuracy"] == 0
    assert measured["l1_unseen_pair_accuracy"] == 0
    assert measured["l1_seen_pair_accuracy"] == 0


@pytest.mark.parametrize("captions", KINDS)
def test_zero_shot_uses_the_text_alone(captions):
    task, outputs = outputs_of(captions=captions)
    images = data_set().test
    if captions == "folder":
        with pytest.raises(ValueError, match="no word of class 'bird' occurs in the captions"):
            task.zero_shot(task.module, images, NAMES)
        return
    found, _ = task.zero_shot(task.module, images, NAMES)
    assert_close(found, outputs["logits"])
    relabelled = Images(images.pixels, images.labels * 0)
    assert_close(task.zero_shot(task.module, relabelled, NAMES[3:5])[0], found[:, 3:5])


@pytest.mark.parametrize("captions", KINDS)
def test_pictures_show_what_an_image_and_a_caption_find(captions):
    task, data, index = new_task(captions=captions), data_set(), torch.tensor([3, 14])
    found = task.pictures(task.module, data, index)
    assert str(found) == str(task.pictures(task.module, data, index)), "deterministic"
    table, grid = found["captions"], found["retrieval"]
    assert [row[0] for row in table.rows] == ["3", "14"]
    words = ["number 3", "number 14"] if captions == "folder" else [NAMES[3], NAMES[4]]
    for row, word in zip(table.rows, words, strict=True):
        assert word in row[1]
        assert len(row) == len(table.head) == 5
    assert grid.cells.shape == (2, 6, 3, 8, 8)
    assert grid.row_names == tuple(row[1] for row in table.rows)
    task.module.eval()
    images = task.embed_images(task.module, data.test)
    tokens = tokenize([grid.row_names[0]], task.module.text.encoder(), task.module.text.length)
    best = (images @ task.embed_tokens(task.module, tokens)[0]).argmax()
    assert torch.equal(grid.cells[0, 0], data.test.pixels[best])


def test_fields_that_do_not_fit_are_refused():
    for fields, message in (
        ({"held_out_classes": ("cat",)}, "held_out_classes needs captions 'superclasses'"),
        ({"captions": "superclasses", "held_out_classes": ("cow",)}, "'cow' is not one of bird"),
        ({"captions": "superclasses", "held_out_classes": NAMES}, "no class is left to train on"),
        ({"text_heads": 3}, "text_heads 3 does not divide text_dim 16"),
    ):
        with pytest.raises(ValueError, match=message):
            experiment(**fields)
    spec = experiment()
    mixed = spec.data.augment.replace(mixup=0.5)
    with pytest.raises(ValueError, match=r"data.augment.mixup: no caption describes a mixed image"):
        spec.replace(data=spec.data.replace(augment=mixed))
    with pytest.raises(ValueError, match=r"task.captions: 'folder' reads captions.csv"):
        spec.replace(task=spec.task.replace(captions="folder"))
