"""Contrastive training: its loss, its batches and what it measures."""

import math
from collections import defaultdict
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from experiments.gates.clip import Shuffled
from tests.core.trainings import data_set as small_set
from vitcli.core.data.source import DataSet, Images
from vitcli.core.spec import ExperimentSpec
from vitcli.plugins.clip.captions import CIFAR10, KINDS
from vitcli.plugins.clip.changes import CHANGES
from vitcli.plugins.clip.clip import (
    LARGEST_SCALE,
    ContrastiveTask,
    contrastive_loss,
    distinct,
    ensemble,
    loss_floor,
    ranks,
    recall,
)
from vitcli.plugins.clip.tokens import UNKNOWN


def test_equal_captions_share_the_target():
    images, texts = (F.normalize(torch.randn(6, 4, dtype=torch.float64), dim=1) for _ in "ab")
    scale = torch.tensor(7.0, dtype=torch.float64)
    caption = torch.tensor([0, 1, 0, 1, 1, 2])
    wanted = 0.0
    logits = (scale * images @ texts.T).tolist()
    for i in range(6):
        same = [j for j in range(6) if caption[j] == caption[i]]
        across = math.log(sum(math.exp(logits[i][j]) for j in range(6)))
        down = math.log(sum(math.exp(logits[j][i]) for j in range(6)))
        wanted -= sum(logits[i][j] - across + logits[j][i] - down for j in same) / len(same) / 12
    assert_close(contrastive_loss(images, texts, scale, caption).item(), wanted)


def test_the_floor_is_reached_by_the_best_model_and_not_passed():
    subject = torch.tensor([0, 0, 0, 1, 1, 2, 3, 3])
    perfect = F.one_hot(subject).double()
    scale = torch.tensor(1000.0, dtype=torch.float64)
    floor = loss_floor(subject)
    assert_close(contrastive_loss(perfect, perfect, scale, subject).item(), floor.item())
    assert_close(floor.item(), (3 * math.log(3) + 4 * math.log(2)) / 8)
    templates = torch.arange(8)  # other words for the same subject: the same floor
    assert_close(contrastive_loss(perfect, perfect, scale, templates).item(), floor.item())


def test_an_ensemble_is_the_mean_direction():
    prompts = torch.randn(3, 5, 4)
    unit = prompts / prompts.norm(dim=-1, keepdim=True)
    mean = unit.mean(1)
    assert_close(ensemble(prompts), mean / mean.norm(dim=-1, keepdim=True))


def test_ranks_count_wrong_items_before_the_best_right_one():
    items = F.normalize(torch.tensor([[1.0, 0.0], [0.9, 0.3], [0.0, 1.0], [0.6, 0.8]]), dim=1)
    of_item = torch.tensor([0, 1, 2, 0])
    queries = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    subject = torch.tensor([0, 1, 2, 0])
    found = ranks(queries, items, subject, of_item)
    assert found.tolist() == [0, 1, 3, 1], "a second item of the subject does not count"
    assert [recall(found, k) for k in (1, 2, 4)] == [0.25, 0.75, 1.0]


def test_equal_vectors_retrieve_nothing_and_portions_have_no_effect(monkeypatch):
    vectors, subject = F.normalize(torch.ones(5, 3), dim=1), torch.arange(5)
    assert ranks(vectors, vectors, subject, subject).tolist() == [4] * 5
    queries, items = torch.randn(10, 3), torch.randn(7, 3)
    subject, of_item = torch.arange(10) % 7, torch.arange(7)
    whole = ranks(queries, items, subject, of_item)
    monkeypatch.setattr("vitcli.plugins.clip.clip.AT_ONCE", 4)
    assert torch.equal(ranks(queries, items, subject, of_item), whole)


def test_equal_numbers_have_one_first_place():
    first, twin = distinct(torch.tensor([7, 2, 7, 7, 2, 9]))
    assert first.tolist() == [1, 0, 5]
    assert twin.tolist() == [1, 0, 1, 1, 0, 2]


NAMES = tuple(word for group in CIFAR10.values() for word in group.split())
SIZES = {"patch_size": 4, "embed_dim": 16, "depth": 1, "num_heads": 2, "pool": "mean"}


def data_set(count: int = 40) -> DataSet:
    level = torch.arange(count, dtype=torch.uint8) * (250 // count)
    pixels = level[:, None, None, None].expand(count, 3, 8, 8).contiguous()
    texts = [f"number {i}\nthe {i}".encode().ljust(16, b"\0") for i in range(count)]
    captions = torch.tensor([list(text) for text in texts], dtype=torch.uint8)
    images = Images(pixels, torch.arange(count) % 10, {"caption": captions})
    mean, std = (0.5,) * 3, (0.25,) * 3
    return replace(small_set(), train=images, test=images, class_names=NAMES, mean=mean, std=std)


def new_task(batch_size: int = 8, **fields) -> ContrastiveTask:
    name = "imagefolder:x" if fields.get("captions") == "folder" else "cifar10"
    values = {"mean": (0.5,) * 3, "std": (0.25,) * 3, "class_names": NAMES}
    sections = {
        "task": {"name": "clip", "text_dim": 16, "text_depth": 1, "joint_dim": 8} | fields,
        "model": SIZES | {"img_size": 8, "in_chans": 3, "num_classes": 10},
        "data": {"name": name, "augment": {"flip": "random"}} | values,
        "train": {"batch_size": batch_size},
    }
    spec = ExperimentSpec.model_validate(sections)
    module = ContrastiveTask.make_module(spec)
    ContrastiveTask.read_data(module, spec, data_set())
    return ContrastiveTask(spec, module)


def drawn(task, data: DataSet, epoch: int = 0) -> dict[int, list[int]]:
    """Return the level of each image in an epoch and the tokens of its caption."""
    found: dict[int, list[int]] = {}
    for batch in task.batches(data, epoch):
        levels = task.to_pixels(batch["images"])[:, 0, 4, 4].tolist()
        found |= dict(zip(levels, batch["tokens"].tolist(), strict=True))
    return found


def test_each_caption_of_a_folder_belongs_to_its_image():
    task, data = new_task(captions="folder"), data_set()
    words = task.module.text.words()
    assert {"number", "the", "0", "39"} <= {*words}
    seen = defaultdict(set)
    for epoch in range(6):
        for level, tokens in drawn(task, data, epoch).items():
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


def test_the_captions_of_the_shuffled_control_say_nothing_of_their_images():
    task, data = new_task(batch_size=100), data_set(100)
    (batch,) = Shuffled(task.spec, task.module).batches(data, 0)
    rows = (task.to_pixels(batch["images"])[:, 0, 4, 4] // 2).long()
    pairs = zip(data.train.labels[rows].tolist(), batch["subject"].tolist(), strict=True)
    assert sorted(pairs) == [(label, subject) for label in range(10) for subject in range(10)]


def test_captions_that_differ_in_capital_letters_find_each_others_images(monkeypatch):
    task, data = new_task(captions="folder"), data_set(4)
    texts = ("A number", "a number", "the", "The")
    rows = [list(text.encode().ljust(16, b"\0")) for text in texts]
    images = replace(data.test, extra={"caption": torch.tensor(rows, dtype=torch.uint8)})
    drawn = task.captions_of(images)
    assert drawn.caption.tolist() == [0, 0, 1, 1]
    unit = F.one_hot(drawn.caption).float()
    found = {"embed_images": unit, "embed_tokens": torch.eye(2), "class_vectors": torch.eye(2)}
    for name, vectors in found.items():
        monkeypatch.setattr(task, name, lambda *_, vectors=vectors: vectors)
    measured = task.measure(task.outputs(task.module, images))
    assert (measured["image_to_text_r1"], measured["text_to_image_r1"]) == (1.0, 1.0)


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
    (batch,) = task.batches(replace(data, train=images), 0)
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
    levels = {name.split("_")[0] for name in measured if name.startswith("l")}
    assert levels == ({"l1"} if captions == "transformations" else set())


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
    joined = f"{NAMES[3]}_{NAMES[4]}"  # as CIFAR-100 writes names of two words
    assert task.zero_shot(task.module, images, [joined, "a_violin"])[1] == ["violin"]


def test_transformations_of_colours_need_colours():
    colours = data_set()
    grey = replace(colours, train=replace(colours.train, pixels=colours.train.pixels[:, :1]))
    new_task(captions="transformations").check_data(colours)
    with pytest.raises(ValueError, match=r"task\.captions: .* colours"):
        new_task(captions="transformations").check_data(grey)
